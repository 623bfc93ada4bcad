"""The operator's actions on nodes and Gpus go into the audit log too.

Telemetry may not import the audit log, so its admin classes are extended here.
"""

from typing import Any

from axes.admin import AccessAttemptAdmin
from axes.models import AccessAttempt
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy
from django.utils.translation import gettext_lazy as lazy

import telemetry.admin  # noqa: F401  registers the classes extended below
from reservations.admin import AuditedActs, AuditedAdmin, ReasonAdminForm
from reservations.models import User
from reservations.operations.node_retirement import retire_node
from telemetry.models import (
    Alert,
    Gpu,
    Node,
    Pool,
    Response,
    TelemetryPolicy,
    XidCount,
)
from telemetry.protocol.coded_error import CodedError


@admin.action(description=lazy("Retire (nothing may be booked on it)"))
def retire(page: Any, request: HttpRequest, chosen: QuerySet[Node]) -> None:
    """Retire nodes. Booked nodes stay, and a message names them."""
    actor = request.user
    assert isinstance(actor, User)
    for node in chosen:
        try:
            retire_node(name=node.name, actor=actor, reason="", now=timezone.now())
        except CodedError as error:
            page.message_user(request, str(error), messages.ERROR)
        else:
            told = gettext("%(name)s is retired. Its history stays.")
            page.message_user(request, told % {"name": node.name})


for _model in (Node, Gpu, Pool, Alert, XidCount, Response):
    _plain = type(admin.site.get_model_admin(_model))
    admin.site.unregister(_model)
    admin.site.register(
        _model, type(f"Audited{_plain.__name__}", (AuditedActs, _plain), {})
    )

_NodeAdmin: Any = admin.site.get_model_admin(Node)
_NodeAdmin.actions = [*_NodeAdmin.actions, retire]

admin.site.unregister(AccessAttempt)


@admin.register(AccessAttempt)
class FailedLoginAdmin(AccessAttemptAdmin):  # type: ignore[misc]
    """Failed logins. The clean-up of axes needs a time that it sets only at logins."""

    @admin.action(description=gettext_lazy("Clean up expired attempts"))
    def cleanup_expired_attempts(
        self, request: HttpRequest, queryset: QuerySet[AccessAttempt]
    ) -> None:
        """Delete the attempts that no longer count."""
        request.axes_attempt_time = timezone.now()  # type: ignore[attr-defined]
        super().cleanup_expired_attempts(request, queryset)


_PolicyAdmin: Any = type(admin.site.get_model_admin(TelemetryPolicy))
admin.site.unregister(TelemetryPolicy)


@admin.register(TelemetryPolicy)
class AuditedTelemetryPolicyAdmin(_PolicyAdmin, AuditedAdmin):  # type: ignore[misc]
    """Thresholds. A change needs a reason and is audited with the previous values."""

    form: Any = ReasonAdminForm

    def save_model(
        self, request: HttpRequest, obj: TelemetryPolicy, form: Any, change: bool
    ) -> None:
        """Keep the previous value of each changed threshold for the audit log."""
        changes = {
            name: [form.initial.get(name), form.cleaned_data[name]]
            for name in form.changed_data
            if name != "reason"
        }
        request._audit_detail = {"changes": changes}  # type: ignore[attr-defined]
        super().save_model(request, obj, form, change)
