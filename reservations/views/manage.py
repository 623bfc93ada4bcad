"""The operator's pages under /manage/: where each of them hangs."""

from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_safe

from reservations.views.access import operator_required


@require_safe
@operator_required
def home(request: HttpRequest) -> HttpResponseBase:
    """Lead to the first tab."""
    return redirect("manage-accounts")
