"""The operator's acts on nodes and Gpus go into the audit log too.

Telemetry lies below the floor that keeps the audit log, so its desks are dressed
here, where both floors may be seen.
"""

from django.contrib import admin

import telemetry.admin  # noqa: F401  registers what is dressed below
from reservations.admin import AuditedActs
from telemetry.models import Alert, Gpu, Node, Pool

for _model in (Node, Gpu, Pool, Alert):
    _plain = type(admin.site.get_model_admin(_model))
    admin.site.unregister(_model)
    admin.site.register(
        _model, type(f"Audited{_plain.__name__}", (AuditedActs, _plain), {})
    )
