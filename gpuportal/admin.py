"""The operator's acts on nodes and Gpus go into the audit log too.

Telemetry lies below the floor that keeps the audit log, so its desks are dressed
here, where both floors may be seen.
"""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

import telemetry.admin  # noqa: F401  registers what is dressed below
from reservations.admin import AuditedActs, AuditedAdmin, ReasonForm
from telemetry.models import (
    Alert,
    Gpu,
    Node,
    Pool,
    Response,
    TelemetryPolicy,
    XidCount,
)

for _model in (Node, Gpu, Pool, Alert, XidCount, Response):
    _plain = type(admin.site.get_model_admin(_model))
    admin.site.unregister(_model)
    admin.site.register(
        _model, type(f"Audited{_plain.__name__}", (AuditedActs, _plain), {})
    )

_PolicyAdmin: Any = type(admin.site.get_model_admin(TelemetryPolicy))
admin.site.unregister(TelemetryPolicy)


@admin.register(TelemetryPolicy)
class AuditedTelemetryPolicyAdmin(_PolicyAdmin, AuditedAdmin):  # type: ignore[misc]
    """Thresholds: changed with a reason, and audited with what they were before."""

    form: Any = ReasonForm

    def save_model(
        self, request: HttpRequest, obj: TelemetryPolicy, form: Any, change: bool
    ) -> None:
        """Keep what each changed threshold was for the audit log."""
        changes = {
            name: [form.initial.get(name), form.cleaned_data[name]]
            for name in form.changed_data
            if name != "reason"
        }
        request._audit_detail = {"changes": changes}  # type: ignore[attr-defined]
        super().save_model(request, obj, form, change)
