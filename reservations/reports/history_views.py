"""The page of an Account's use of Gpus."""

from django.db.models import Max
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils.translation import gettext
from django.views.decorators.http import require_safe

from reservations.models import Account
from reservations.store.access import charted_accounts, reader
from telemetry.history.charts import charts_page
from telemetry.models import Gpu


@require_safe
def account_history(request: HttpRequest, pk: int) -> HttpResponse:
    """Show an Account's charts to its members, its heads and the operator."""
    seen = charted_accounts(reader(request))
    account = get_object_or_404(Account, pk=pk, pk__in=seen)
    most = Gpu.objects.shown().aggregate(
        memory=Max("memory_total_bytes"), watts=Max("power_limit_watts")
    )
    return render(
        request,
        "telemetry/history/history_show.html",
        {
            "name": str(account),
            "lead": gettext("GPU readings while this group held the GPUs."),
            "history": charts_page(
                f"/accounts/{account.pk}/history",
                memory_total_bytes=most["memory"],
                power_limit_watts=most["watts"],
                per_gpu=True,
                hole=gettext("the group held no GPU, or there is no reading"),
            ),
        },
    )
