"""The bell of the top bar alone. Open pages fetch it when they are notified of news."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe


@require_safe
@never_cache
def bell(request: HttpRequest) -> HttpResponse:
    """Answer with the bell and its menu, as on every page."""
    return render(request, "gpuportal/alerts/bell.html")
