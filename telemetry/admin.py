"""The admin's pages of nodes, Gpus and what they report.

What nodes report is read-only here. `enroll_node` makes a node and gives it its token.
All changes, bulk changes included, are in the admin's own log, and gpuportal also
writes them into the audit log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as lazy

from telemetry.alerts.service import acknowledge_alert, close_alert
from telemetry.history.stored_usage import usage_of
from telemetry.inventory.roster import COPIED
from telemetry.inventory.xid_counts import clear_xids
from telemetry.models import (
    Alert,
    Gpu,
    HourDue,
    Node,
    Pool,
    Response,
    TelemetryPolicy,
    UsageSummary,
    XidCount,
)
from telemetry.protocol import units
from telemetry.protocol.sentences import sentence
from telemetry.web.plain_forms import PlainModelForm

if TYPE_CHECKING:
    from django.forms import ModelForm

    _ModelAdmin = admin.ModelAdmin[Any]
else:
    _ModelAdmin = admin.ModelAdmin


@admin.action(description=lazy("Maintenance: nobody can book"))
def begin_maintenance(
    page: admin.ModelAdmin[Any], request: HttpRequest, chosen: QuerySet[Any]
) -> None:
    """Take the chosen rows out of booking."""
    _set_maintenance(page, request, chosen, on=True)


@admin.action(description=lazy("End maintenance"))
def end_maintenance(
    page: admin.ModelAdmin[Any], request: HttpRequest, chosen: QuerySet[Any]
) -> None:
    """Let the chosen rows be booked again."""
    _set_maintenance(page, request, chosen, on=False)


def _set_maintenance(
    page: admin.ModelAdmin[Any],
    request: HttpRequest,
    chosen: QuerySet[Any],
    *,
    on: bool,
) -> None:
    changed = list(chosen.filter(maintenance=not on))
    for row in changed:
        row.maintenance = on
        row.save(update_fields=["maintenance"])
        page.log_change(request, row, [{"changed": {"fields": ["maintenance"]}}])
    page.message_user(request, gettext("%(n)s changed.") % {"n": len(changed)})


class PlainAdmin(_ModelAdmin):
    """Base of pages whose forms explain errors in plain words."""

    form = PlainModelForm


class FactsAdmin(PlainAdmin):
    """Rows that only telemetry makes. Nobody can add one by hand."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody."""
        return False


@admin.register(Node)
class NodeAdmin(FactsAdmin):
    """Machines. New ones come with `manage.py enroll_node`."""

    list_display = [
        "name",
        "simulated",
        "maintenance",
        "retired",
        "isolation",
        "driver_version",
        "last_seen_at",
    ]
    list_filter = ["simulated", "maintenance", "retired", "isolation"]
    search_fields = ["name"]
    actions = [begin_maintenance, end_maintenance]
    readonly_fields = [
        "name",
        "simulated",
        "retired",
        "isolation",
        "driver_version",
        "cuda_version",
        "extras",
        "ram_total_bytes",
        "ram_free_bytes",
        "disk_free_bytes",
        "fast_links",
        "links",
        "enrolled_at",
        "last_seen_at",
    ]


@admin.register(Pool)
class PoolAdmin(PlainAdmin):
    """The price of a class of Gpus, and how far the portal goes against intruders."""

    list_display = [
        "gpu_class",
        "weight",
        "peak_flops",
        "response",
        "response_dry_run",
        "may_adopt",
    ]
    search_fields = ["gpu_class"]


@admin.register(Gpu)
class GpuAdmin(FactsAdmin):
    """Cards. Node and Pool can be changed, because a card may move to another
    machine."""

    list_display = [
        "__str__",
        "pool",
        "uuid",
        "present",
        "lost",
        "new",
        "maintenance",
        "draining",
        "retired",
    ]
    list_filter = [
        "node",
        "pool",
        "present",
        "new",
        "lost",
        "maintenance",
        "draining",
        "retired",
    ]
    list_select_related = ["node", "pool"]
    search_fields = ["uuid", "node__name", "serial", "pci_bus_id"]
    actions = [begin_maintenance, end_maintenance]
    readonly_fields = ["uuid", *COPIED, "present", "lost", "replaced_by"]

    def save_model(
        self, request: HttpRequest, obj: Gpu, form: ModelForm[Gpu], change: bool
    ) -> None:
        """Save the Gpu. A Gpu retired here does not come back with its node."""
        if "retired" in form.changed_data:
            obj.retired_with_node = False
        super().save_model(request, obj, form, change)


class LookedAtAdmin(FactsAdmin):
    """Rows that only actions can change."""

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Allow changes on the list only, because actions need that permission."""
        return obj is None and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody can delete a finding."""
        return False


@admin.register(Alert)
class AlertAdmin(LookedAtAdmin):
    """Findings. They close automatically. An operator may close one earlier."""

    list_display = [
        "rule",
        "severity",
        "place",
        "opened_at",
        "last_seen_at",
        "closed_at",
        "acknowledged_by",
        "snoozed_until",
    ]
    list_filter = ["severity", "rule", ("closed_at", admin.EmptyFieldListFilter)]
    list_select_related = ["gpu__node", "node"]
    date_hierarchy = "opened_at"
    actions = ["acknowledge", "close"]

    @admin.action(description=lazy("Acknowledge"))
    def acknowledge(self, request: HttpRequest, chosen: QuerySet[Alert]) -> None:
        """Acknowledge the chosen findings."""
        now, by = timezone.now(), request.user.get_username()
        for alert in chosen.filter(closed_at=None):
            if acknowledge_alert(alert_id=alert.pk, by=by, now=now):
                self.log_change(request, alert, "Acknowledged.")

    @admin.action(description=lazy("Close"))
    def close(self, request: HttpRequest, chosen: QuerySet[Alert]) -> None:
        """Close the chosen findings. A finding that is seen again opens again."""
        now = timezone.now()
        for alert in chosen.filter(closed_at=None):
            close_alert(
                rule=alert.rule,
                gpu_id=alert.gpu_id,
                node_id=alert.node_id,
                now=now,
            )
            self.log_change(request, alert, "Closed.")


@admin.register(XidCount)
class XidCountAdmin(LookedAtAdmin):
    """XIDs by Gpu and code; cleared here or on the Gpu's page."""

    list_display = ["gpu", "code", "count", "first_at", "last_at", "cleared_at"]
    list_filter = ["code", ("cleared_at", admin.EmptyFieldListFilter)]
    list_select_related = ["gpu__node"]
    search_fields = ["gpu__node__name", "gpu__uuid"]
    actions = ["clear"]

    @admin.action(description=lazy("Clear: they were dealt with"))
    def clear(self, request: HttpRequest, chosen: QuerySet[XidCount]) -> None:
        """Clear the chosen counts and close their Alerts."""
        now = timezone.now()
        for row in list(chosen):
            if clear_xids(gpu_id=row.gpu_id, code=row.code, now=now):
                self.log_change(request, row, "Cleared.")


@admin.register(Response)
class ResponseAdmin(LookedAtAdmin):
    """Responses to intruders' processes, dry runs included."""

    list_display = [
        "at",
        "step",
        "login",
        "pid",
        "place",
        "dry_run",
        "outcome",
        "outcome_reason",
    ]
    list_filter = ["step", "dry_run", "outcome"]
    list_select_related = ["alert__gpu__node"]
    search_fields = ["login", "alert__gpu__node__name"]

    @admin.display(description="GPU")
    def place(self, row: Response) -> str:
        """Where the process ran."""
        return row.alert.place


@admin.register(TelemetryPolicy)
class TelemetryPolicyAdmin(PlainAdmin):
    """The one row of thresholds. Each field shows its meaning, unit and default."""

    list_display = ["__str__", "least_samples", "silent_after_seconds"]

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Allow it only if there is no row yet."""
        return not TelemetryPolicy.objects.exists()

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody can delete it: without thresholds nothing is found."""
        return False

    def formfield_for_dbfield(
        self, db_field: models.Field[Any, Any], request: HttpRequest, **kwargs: Any
    ) -> Any:
        """Add the default to each field's help text."""
        made = super().formfield_for_dbfield(db_field, request, **kwargs)
        if made is not None and db_field.has_default():
            default = str(db_field.get_default()).replace("\n", ", ")
            made.help_text = sentence(
                "{help} Default: {default}.", help=db_field.help_text, default=default
            )
        return made


class KeptAdmin(FactsAdmin):
    """Read-only rows: counts are not edited."""

    list_per_page = 50
    show_full_result_count = False

    def has_change_permission(
        self, request: HttpRequest, obj: models.Model | None = None
    ) -> bool:
        """Nobody."""
        return False

    def has_delete_permission(
        self, request: HttpRequest, obj: models.Model | None = None
    ) -> bool:
        """Nobody can delete rows. The tick deletes those beyond their retention."""
        return False


@admin.register(UsageSummary)
class UsageSummaryAdmin(KeptAdmin):
    """Usage summaries of Reservations and Jobs."""

    list_display = [
        "__str__",
        "gpu",
        "from_at",
        "to_at",
        "mean",
        "util_p95_pct",
        "idle",
        "memory",
        "energy",
        "next_at",
    ]
    list_filter = ["kind", ("next_at", admin.EmptyFieldListFilter)]
    list_select_related = ["gpu__node"]
    search_fields = ["=reservation_id", "=job_id"]
    date_hierarchy = "to_at"

    @admin.display(description=lazy("Utilization"))
    def mean(self, row: UsageSummary) -> str:
        """Mean utilization."""
        return units.format_pct(usage_of(row).totals.util_mean_pct)

    @admin.display(description=lazy("Idle"))
    def idle(self, row: UsageSummary) -> str:
        """Share of samples under the idle threshold."""
        return units.format_ratio(usage_of(row).totals.idle_ratio)

    @admin.display(description=lazy("Memory, highest"))
    def memory(self, row: UsageSummary) -> str:
        """Highest memory."""
        return units.format_gib(row.memory_max_bytes)

    @admin.display(description=lazy("Energy"))
    def energy(self, row: UsageSummary) -> str:
        """Energy in kWh."""
        return units.format_kwh(usage_of(row).energy_kwh)


@admin.register(HourDue)
class HourDueAdmin(KeptAdmin):
    """Hours that wait to be rolled up. The running hour is always among them."""

    list_display = ["hour_at", "tier", "changed_at"]
    list_filter = ["tier"]
