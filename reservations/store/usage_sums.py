"""Store the sums of a large ledger now and then, for processes that start."""

from datetime import datetime

from django.db import transaction

from reservations.models import KeptUsage
from reservations.rules.policy import Policy
from reservations.store.usage import settled_charges

STORED_EVERY_ROWS = 5_000
"""What a process that starts reads at most by itself, beside the newest."""


def store_usage(now: datetime, policy: Policy) -> bool:
    """Store the weighed charges that are settled; False: nothing much is new.

    Any number of workers may: whichever row is stored is true, and none goes back.
    """
    found = settled_charges(now, policy)
    if found is None:
        return False
    settled_pk, sums = found
    with transaction.atomic(durable=True):
        rows = KeptUsage.objects.select_for_update()
        before = rows.filter(half_life_seconds=policy.half_life_seconds).first()
        if before and settled_pk - before.settled_pk < STORED_EVERY_ROWS:
            return False
        KeptUsage.objects.update_or_create(
            half_life_seconds=policy.half_life_seconds,
            defaults={
                "settled_pk": settled_pk,
                "sums": {str(pk): hex(total) for pk, total in sums.items()},
            },
        )
    return True
