"""`manage.py check_books`: check that the ledger adds up and nothing overlaps."""

from collections.abc import Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connection
from django.db.models import Sum

from reservations.models import Allocation, LedgerEntry, Reservation, triggers
from reservations.rules.lifecycle import State

_OVERLAPS = """
SELECT a.id, b.id FROM reservations_allocation a
JOIN reservations_allocation b ON a.gpu_id = b.gpu_id AND a.id < b.id
WHERE a.live AND b.live AND a.start < b."end" AND b.start < a."end"
"""


def findings() -> Iterator[str]:
    """Yield a sentence for each error."""
    for name in triggers.missing():
        yield f"the database lacks the guard {name}"
    with connection.cursor() as cursor:
        cursor.execute(_OVERLAPS)
        for one, other in cursor.fetchall():
            yield f"allocations {one} and {other} overlap"
    held = dict(
        LedgerEntry.objects.filter(
            kind__in=(LedgerEntry.Kind.HOLD, LedgerEntry.Kind.RELEASE)
        )
        .order_by()
        .values_list("reservation_id")
        .annotate(Sum("gpu_seconds"))
    )
    rows = Reservation.objects.order_by("pk").values_list(
        "pk", "state", "cost_gpu_seconds"
    )
    for pk, state, cost in rows.iterator(chunk_size=5000):
        expected = cost if state in State.live() else 0
        if held.get(pk, 0) != expected:
            yield f"reservation {pk} ({state}) holds {held.get(pk, 0)}, not {expected}"
    strays = Allocation.objects.filter(live=True).exclude(
        reservation__state__in=State.live()
    )
    for pk in strays.values_list("reservation_id", flat=True).distinct():
        yield f"reservation {pk} is over and still holds a GPU"


class Command(BaseCommand):
    """Checks without changing anything. Exits with 1 if there is an error."""

    help = "Check that HOLD and RELEASE add up and that no reservation overlaps."

    def handle(self, *args: Any, **options: Any) -> None:
        """Print every finding."""
        found = list(findings())
        for sentence in found:
            self.stderr.write(sentence)
        if found:
            raise CommandError(f"{len(found)} errors were found in the books.")
        self.stdout.write("The books add up and nothing overlaps.")
