"""The two policies as typed objects: looked at, changed, their history, undone.

The history is the audit log: who, when, why, each field before and after.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models, transaction

from reservations.models import AuditEntry, SitePolicy, User
from reservations.operations.policy_fields import (
    Changes,
    PolicyChanged,
    PolicyField,
    label_of,
    unit_of,
    words_of,
)
from reservations.rules.errors import NotFound
from reservations.store.audit_log import audit_act
from telemetry.inventory.threshold_edit import set_policy
from telemetry.models import TelemetryPolicy
from telemetry.protocol.sentences import Sentence, sentence

MODELS: dict[str, type[SitePolicy] | type[TelemetryPolicy]] = {
    "booking": SitePolicy,
    "telemetry": TelemetryPolicy,
}
_HIDDEN = {"id", "version"}
DEFAULT_IN_WORDS = re.compile(
    r" In (?:weighted GPU-)?seconds; default \d+ \(([^()]+)\)\.$"
)
DEFAULT_IN_SECONDS = re.compile(r" In seconds; default (\d+)\.$")
CHANGED, UNDONE = "policy.changed", "policy.undone"


@dataclass(frozen=True, slots=True)
class PolicyPreview:
    """What a change would do, or what is wrong with it."""

    changes: Changes
    """(before, after) by field."""
    wrong: Mapping[str, list[str]]
    """Sentences by field; "" : about several."""

    @property
    def seen(self) -> str:
        """Return a mark of exactly this change: what is saved must be what was seen."""
        said = json.dumps({k: list(v) for k, v in self.changes.items()}, sort_keys=True)
        return hashlib.sha256(said.encode()).hexdigest()[:32]


def fields_of(which: str) -> list[PolicyField]:
    """Return every field of a policy: meaning, unit, default, limits, value.

    Raises:
        NotFound: there is no such policy.
    """
    row = _current(which)
    return [_field(field, getattr(row, field.name)) for field in _own(row)]


def _own(row: models.Model) -> list[Any]:
    return [f for f in row._meta.concrete_fields if f.name not in _HIDDEN]


def _field(field: Any, value: object) -> PolicyField:
    checks = field.validators
    least = [v.limit_value for v in checks if isinstance(v, MinValueValidator)]
    most = [v.limit_value for v in checks if isinstance(v, MaxValueValidator)]
    kind = {
        "BooleanField": "switch",
        "TextField": "lines",
        "CharField": "words",
        "FloatField": "ratio",
    }.get(field.get_internal_type(), "number")
    return PolicyField(
        name=field.name,
        label=label_of(field.name),
        meaning=as_typed(field.help_text),
        unit=unit_of(field.name),
        kind=kind,
        default=field.get_default(),
        value=value,
        # The database's own limits come first; the narrowest is meant.
        least=max(least) if least else None,
        most=min(most) if most else None,
        blank=bool(field.blank),
    )


def as_typed(meaning: str) -> str:
    """Return a field's meaning for a page on which times are typed as "14 d".

    >>> as_typed("How far ahead. In seconds; default 1209600 (14 days).")
    'How far ahead. Default: 14 days.'
    >>> as_typed("Time to stop. In seconds; default 30.")
    'Time to stop. Default: 30 s.'
    """
    if isinstance(meaning, Sentence) and "shown" in meaning.values:
        return sentence("{meaning} Default: {shown}.", **meaning.values)
    if isinstance(meaning, Sentence):
        return meaning
    # A lazy translation is read in the language of now.
    meaning = DEFAULT_IN_WORDS.sub(r" Default: \1.", str(meaning))
    meaning = DEFAULT_IN_SECONDS.sub(r" Default: \1 s.", meaning)
    return meaning.removesuffix(" Seconds.")


def look(*, which: str, values: Mapping[str, object]) -> PolicyPreview:
    """Return what these values would change, judged field by field and together.

    Raises:
        NotFound: there is no such policy.
    """
    row = _current(which)
    return _look(row, values)


def _look(
    row: SitePolicy | TelemetryPolicy, values: Mapping[str, object]
) -> PolicyPreview:
    known = {field.name for field in _own(row)}
    changes: dict[str, tuple[object, object]] = {}
    for name, value in values.items():
        if name in known and getattr(row, name) != value:
            changes[name] = (getattr(row, name), value)
            setattr(row, name, value)
    try:
        row.full_clean()
    except ValidationError as error:
        found = error.message_dict
        return PolicyPreview(
            changes,
            {("" if name == "__all__" else name): said for name, said in found.items()},
        )
    return PolicyPreview(changes, {})


def save(
    *,
    which: str,
    values: Mapping[str, object],
    actor: User,
    now: datetime,
    reason: str,
    seen: str,
    verb: str = CHANGED,
    **detail: object,
) -> Changes:
    """Keep a change exactly as it was looked at; what is different now.

    Raises:
        ValidationError: by field.
        PolicyChanged: somebody changed the policy since; look again.
        NotFound: there is no such policy.
    """
    with transaction.atomic(durable=True):
        _current(which)
        row = MODELS[which].objects.select_for_update().get(pk=1)
        found = _look(row, values)
        if found.wrong:
            raise ValidationError(
                {name or "__all__": said for name, said in found.wrong.items()}
            )
        if found.seen != seen:
            raise PolicyChanged
        if not found.changes:
            return {}
        after = {name: new for name, (_old, new) in found.changes.items()}
        if isinstance(row, SitePolicy):
            row._change_reason = reason[:100]  # type: ignore[attr-defined]
            row.save()
        else:
            set_policy(values=after)
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
    """Return the changes of a policy, newest first, those made in the admin too.

    Raises:
        NotFound: there is no such policy.
    """
    name = _current(which)._meta.model_name
    return (
        AuditEntry.objects.filter(subject__in=[f"policy:{which}", f"{name}:1"])
        .select_related("actor")
        .order_by("-at", "-pk")
    )


def undo_look(*, which: str, entry_id: int) -> tuple[AuditEntry, PolicyPreview]:
    """Return what undoing a change would do: its fields go back to what was before.

    Raises:
        NotFound: no such change, or one without what was before.
        PolicyChanged: one of its fields was changed again since.
    """
    entry = history(which).filter(pk=entry_id, verb__in=[CHANGED, UNDONE]).first()
    if entry is None:
        raise NotFound(what=sentence("change of this policy under that number"))
    row = _current(which)
    after = entry.detail["after"]
    if any(getattr(row, name) != value for name, value in after.items()):
        raise PolicyChanged
    return entry, _look(row, entry.detail["before"])


def undo(
    *, which: str, entry_id: int, actor: User, now: datetime, reason: str
) -> Changes:
    """Put a change's fields back, where nobody changed them since.

    Raises:
        NotFound, PolicyChanged.
        ValidationError: what was before holds no longer together with the rest.
    """
    entry, found = undo_look(which=which, entry_id=entry_id)
    return save(
        which=which,
        values=entry.detail["before"],
        actor=actor,
        now=now,
        reason=reason,
        seen=found.seen,
        verb=UNDONE,
        undoes=entry.pk,
    )


def _current(which: str) -> SitePolicy | TelemetryPolicy:
    if which not in MODELS:
        raise NotFound(what=sentence("policy of this name"))
    return MODELS[which].current()


def lines_of(changes: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (field, before, after) in words."""
    return [
        (label_of(name), words_of(name, old), words_of(name, new))
        for name, (old, new) in changes.items()
    ]
