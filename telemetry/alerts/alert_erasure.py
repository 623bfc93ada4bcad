"""Remove a person's names from the Alerts and the responses to them.

The caller decides the names and their replacement. This module gets words to search for
and two functions that rewrite texts.
"""

from collections.abc import Callable, Sequence
from typing import Any

from django.db.models import Q, TextField
from django.db.models.functions import Cast

from telemetry.models import Alert, Response


def forget_names(
    *,
    searched: Sequence[str],
    without: Callable[[str], str],
    json_without: Callable[[Any], Any],
) -> int:
    """Rewrite rows that name a person. Return how many changed. Needs a transaction.

    Args:
        searched: what a row must contain to be looked at.
        without: a text without the names.
        json_without: JSON without the names.
    """
    alerts = Alert.objects.annotate(
        detail_text=Cast("detail", TextField()),
        readings_text=Cast("readings", TextField()),
    )
    fields = ("detail_text", "readings_text", "acknowledged_by", "snoozed_by")
    changed = 0
    for alert in list(alerts.filter(_naming(fields, searched))):
        values: dict[str, Any] = {
            "detail": json_without(alert.detail),
            "readings": json_without(alert.readings),
            "acknowledged_by": without(alert.acknowledged_by)[:150],
            "snoozed_by": without(alert.snoozed_by)[:150],
        }
        changed += Alert.objects.filter(pk=alert.pk).update(**values)
    rows = Response.objects.filter(_naming(("login", "outcome_reason"), searched))
    for row in list(rows):
        changed += Response.objects.filter(pk=row.pk).update(
            login=without(row.login)[:64],
            outcome_reason=without(row.outcome_reason)[:300],
        )
    return changed


def _naming(fields: Sequence[str], searched: Sequence[str]) -> Q:
    wanted = Q(pk__in=[])
    for name in fields:
        for word in searched:
            wanted |= Q(**{f"{name}__icontains": word})
    return wanted
