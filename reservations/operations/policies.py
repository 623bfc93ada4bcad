"""The two policies: preview, change and history. ``policy_undo.py`` undoes a change.

The history is the audit log, with author, time, reason, and each field before and
after.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import models, transaction

from reservations.models import AuditEntry, SitePolicy, User
from reservations.operations.policy_fields import (
    Changes,
    PolicyField,
    words_of,
)
from reservations.rules.errors import NotFound
from reservations.rules.review import FieldsInvalid, PreviewStale, mark_of
from reservations.store.audit_log import audit_act
from telemetry.models import TelemetryPolicy
from telemetry.models.policy_row import PolicyRow
from telemetry.protocol.sentences import joined, sentence

MODELS: dict[str, type[PolicyRow]] = {
    "booking": SitePolicy,
    "telemetry": TelemetryPolicy,
}
CHANGED, UNDONE = "policy.changed", "policy.undone"
CHANGED_SINCE = sentence(
    "Another person has changed the policy in the meantime. Preview your change again."
)


@dataclass(frozen=True, slots=True)
class PolicyPreview:
    """The effects of a change."""

    changes: Changes
    """(before, after) by field."""

    @property
    def mark(self) -> str:
        """Return a mark of exactly this change, so that nothing else is saved."""
        return mark_of(self.changes)


def fields_of(which: str) -> list[PolicyField]:
    """Return every rule of a policy with its value.

    Raises:
        NotFound: there is no such policy.
    """
    row = current_row(which)
    return [PolicyField(rule, getattr(row, rule.column)) for rule in row.declared.rules]


def preview(*, which: str, values: Mapping[str, object]) -> PolicyPreview:
    """Return the effects of these values, judged field by field and together.

    Raises:
        FieldsInvalid: by field.
        NotFound: there is no such policy.
    """
    row = current_row(which)
    return preview_of(row, values)


def preview_of(row: PolicyRow, values: Mapping[str, object]) -> PolicyPreview:
    """Return the effects of these values on a row, which gets them.

    Raises:
        FieldsInvalid: by field.
    """
    known = {rule.column for rule in row.declared.rules}
    changes: dict[str, tuple[object, object]] = {}
    for name, value in values.items():
        if name in known and getattr(row, name) != value:
            changes[name] = (getattr(row, name), value)
            setattr(row, name, value)
    try:
        row.full_clean()
    except ValidationError as error:
        raise FieldsInvalid(
            {
                "" if name == "__all__" else name: joined(told)
                for name, told in error.message_dict.items()
            }
        ) from error
    return PolicyPreview(changes)


def save(
    *,
    which: str,
    values: Mapping[str, object],
    actor: User,
    now: datetime,
    reason: str,
    mark: str,
    verb: str = CHANGED,
    **detail: object,
) -> Changes:
    """Save a change exactly as it was shown. Return the differences.

    Raises:
        FieldsInvalid: by field.
        PreviewStale: the policy was changed since it was shown.
        NotFound: there is no such policy.
    """
    with transaction.atomic(durable=True):
        current_row(which)
        row = MODELS[which]._default_manager.select_for_update().get(pk=1)
        found = preview_of(row, values)
        if found.mark != mark:
            raise PreviewStale(CHANGED_SINCE)
        if not found.changes:
            return {}
        after = {name: new for name, (_old, new) in found.changes.items()}
        row._change_reason = reason[:100]
        row.save()
        audit_act(
            verb=verb,
            subject=f"policy:{which}",
            actor=actor,
            now=now,
            reason=reason,
            before={name: old for name, (old, _new) in found.changes.items()},
            after=after,
            **detail,
        )
    return found.changes


def history(which: str) -> models.QuerySet[AuditEntry]:
    """Return the changes of a policy, newest first, including those made in the admin.

    Raises:
        NotFound: there is no such policy.
    """
    name = current_row(which)._meta.model_name
    return (
        AuditEntry.objects.filter(subject__in=[f"policy:{which}", f"{name}:1"])
        .select_related("actor")
        .order_by("-at", "-pk")
    )


def current_row(which: str) -> PolicyRow:
    """Return the row of a policy.

    Raises:
        NotFound: there is no such policy.
    """
    if which not in MODELS:
        raise NotFound(what=sentence("policy of this name"))
    return MODELS[which].current()


def lines_of(changes: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (field, before, after) in words."""
    labels = {
        rule.column: rule.label
        for row in MODELS.values()
        for rule in row.declared.rules
    }
    return [
        (labels.get(name, name), words_of(name, old), words_of(name, new))
        for name, (old, new) in changes.items()
    ]
