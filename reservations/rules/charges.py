"""The cost of holding and of returning. Amounts only, no rows.

See docs/design/fair-booking.md#terms, docs/design/fair-booking.md#rule-6. Cost is
``weight x Gpus x seconds``, whole weighted GPU-seconds, in peak hours times the factor
(``prices``). Over the life of a Reservation HOLD + RELEASE = 0 and CHARGE is the amount
paid. Each returned hour is judged separately. An hour that begins 24 h or more after
the return is free. An earlier hour costs ``weight x lambda`` for the part that no other
User then held. It is charged when it has passed. Returning time that displaced another
User's flex is never free. Hours are those of the UTC clock, so that a Reservation cut
into pieces costs the same (docs/design/fair-booking.md#i8).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from reservations.rules.fairness.quota import PERMILLE
from reservations.rules.prices import Rate, cost_gpu_seconds
from reservations.rules.window import DAY_SECONDS, Window, grid_floor, merged, without

HOUR = 3600
FULL_PRICE_PERMILLE = PERMILLE
"""lambda = 1: a no-show, or an idle Reservation that was released."""


def late_windows(
    given_back: Window, *, at: datetime, never_free: Iterable[Window] = ()
) -> list[Window]:
    """Return the hours of a return at ``at`` that are not free.

    These begin before ``at`` + 24 h. An hour begins at its start on the clock, even if
    only its end was returned.

    Args:
        never_free: time that displaced another User's flex. Its return is charged for
            the part that no other User then holds, even if it comes early. Otherwise
            displacing would be free.
    """
    free_from = at + timedelta(seconds=DAY_SECONDS)
    late = [
        piece
        for piece in given_back.hours()
        if grid_floor(piece.start, HOUR) < free_from
    ]
    late += [cut for gone in never_free if (cut := given_back.cut(gone)) is not None]
    return merged(late)


def unheld(late: Window, *, taken: Iterable[Window]) -> list[Window]:
    """Return the parts of a late hour that no other person held, after it has
    passed.
    """
    return without(late, taken)


def late_charge_gpu_seconds(
    parts: Iterable[Window], *, weight: Rate, permille: int
) -> int:
    """Return the price of hours that were returned too late, rounded down."""
    whole = sum(cost_gpu_seconds(part, rate=weight) for part in parts)
    return whole * permille // PERMILLE


@dataclass(frozen=True, slots=True)
class Settlement:
    """The ledger rows at a Reservation's end: RELEASE, CHARGE, and the site's part."""

    release_gpu_seconds: int
    """Negative: exactly the held amount."""
    charge_gpu_seconds: int
    """The Membership's payment."""
    site_gpu_seconds: int = 0
    """Lost time, charged to the site."""


def settlement_of(
    held_gpu_seconds: int,
    *,
    used: Window | None,
    rate: Rate,
    lost: Window | None = None,
) -> Settlement:
    """Return the settlement of a Reservation that held ``held_gpu_seconds``.

    Args:
        used: the time in which it held its Gpus. None: it never began.
        rate: weighted Gpus.
        lost: the part of ``used`` in which a Gpu was lost. The site pays it.
    """
    used_cost = cost_gpu_seconds(used, rate=rate) if used else 0
    in_both = used.cut(lost) if used and lost else None
    lost_cost = cost_gpu_seconds(in_both, rate=rate) if in_both else 0
    return Settlement(
        release_gpu_seconds=-held_gpu_seconds,
        charge_gpu_seconds=used_cost - lost_cost,
        site_gpu_seconds=lost_cost,
    )
