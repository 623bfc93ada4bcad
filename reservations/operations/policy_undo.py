"""Undo a change of a policy: the preview, and the change itself."""

from datetime import datetime

from reservations.models import AuditEntry, User
from reservations.operations.policies import (
    CHANGED,
    CHANGED_SINCE,
    UNDONE,
    PolicyPreview,
    current_row,
    history,
    preview_of,
    save,
)
from reservations.operations.policy_fields import Changes
from reservations.rules.errors import NotFound
from reservations.rules.review import PreviewStale
from telemetry.protocol.sentences import sentence


def undo_preview(*, which: str, entry_id: int) -> tuple[AuditEntry, PolicyPreview]:
    """Return the effects of undoing a change: its fields get their previous values.

    Raises:
        NotFound: no such change, or one without previous values.
        PreviewStale: one of its fields was changed again since.
        FieldsInvalid: the previous values do not fit the other fields any more.
    """
    entry = history(which).filter(pk=entry_id, verb__in=[CHANGED, UNDONE]).first()
    if entry is None:
        raise NotFound(what=sentence("change of this policy under that number"))
    row = current_row(which)
    after = entry.detail["after"]
    if any(getattr(row, name) != value for name, value in after.items()):
        raise PreviewStale(CHANGED_SINCE)
    return entry, preview_of(row, entry.detail["before"])


def undo(
    *, which: str, entry_id: int, actor: User, now: datetime, reason: str
) -> Changes:
    """Restore a change's fields, unless one was changed again since.

    Raises:
        NotFound, PreviewStale, FieldsInvalid.
    """
    entry, found = undo_preview(which=which, entry_id=entry_id)
    return save(
        which=which,
        values=entry.detail["before"],
        actor=actor,
        now=now,
        reason=reason,
        mark=found.mark,
        verb=UNDONE,
        undoes=entry.pk,
    )
