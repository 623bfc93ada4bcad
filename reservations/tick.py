"""The calendar's tick: small numbered steps, safe to run twice and concurrently.

1. Begin due Reservations: CONFIRMED -> ACTIVE. Give time past the end to holders who
   asked for it, where the Gpus are free (``booking.overstay``).
2. Note since when a Gpu is lost. Refund Reservations whose Gpu stays lost.
3. Check in holders whose processes run. Release Reservations whose holder did not
   come (``presence.no_show_release``).
4. Warn about idle Reservations and release them, if the site's policy says so
   (``presence.idle_release``).
5. End Reservations that are over: RELEASE and CHARGE.
6. Where another person's process was on a Gpu at the start, assign equal Gpus or refund
   everything (``booking.unclean_start``).
7. Charge hours that were returned too late, once they have passed
   (``booking.late_charges``).
8. Clear closed Gpus of Reservations made since (``closures.due``). Take replaced Gpus
   out of service once nothing is booked on them (``gpu_replacement.due``).
9. Notify about courses and guests that end soon, and end those that are due
   (``accounts.courses``).
10. Place waiting requests in order; offer and plan for the others
    (``waitlist.scheduler``). In production this is a separate task, because one search
    may take seconds.
11. Roll up the use of each Account's Gpus, once an hour is over.
12. Notify holders whose time is over soon (``holder_notices.ending``), and people
    whose processes use a Gpu without a booking (``presence.adoption``).
13. Close Offers whose time is over. Book the days of a Series as they come into the
    horizon, after the waitlist (``offers.expire``, ``series.service``).

Every move is one compare-and-set on one locked row. A second worker in the same step
finds nothing to do, and a worker that dies leaves nothing half done. A row that fails
is logged and skipped. The order matters: a holder who came in the last minute is
checked in before the end. Rows carry the instant that they follow from, not the tick's.
A tick that is hours late therefore writes the rows that many ticks would have written.
Only Reservations that began and ended while the portal was down are refunded.
"""

import logging
from collections.abc import Callable, Iterable
from datetime import datetime

from django.db import transaction

from reservations.accounts import courses
from reservations.booking import late_charges, lifecycle_steps, overstay, unclean_start
from reservations.notifications import holder_notices
from reservations.operations import closures, gpu_replacement
from reservations.presence import adoption
from reservations.presence import service as absence
from reservations.rules.policy import Policy
from reservations.rules.window import whole_second
from reservations.series import service as series
from reservations.sharing import offers
from reservations.store.booking_facts import site_policy
from reservations.store.gpu_history import held_in_hour
from reservations.waitlist import scheduler
from telemetry.history.hourly_rollup import roll_account_hours
from telemetry.rules.isolated_steps import RowSteps, isolated

log = logging.getLogger(__name__)


def tick(now: datetime, *, waitlist: bool = True) -> dict[str, int]:
    """Run every step. Return how many rows each one changed.

    Args:
        waitlist: whether step 10 runs too. The live portal runs it as another task.
    """
    at = whole_second(now)
    policy = site_policy()
    done = {
        "started": _run_for_each(
            lifecycle_steps.due_to_start(at), lifecycle_steps.start, at, policy
        ),
        "stayed_on": _run_for_each(
            overstay.due(at), overstay.extend_past_end, at, policy
        ),
        "lost": _run_for_each(
            lifecycle_steps.with_lost_gpus(at), lifecycle_steps.watch_lost, at, policy
        ),
    }
    done |= absence.check(at, policy)
    done["ended"] = _run_for_each(
        lifecycle_steps.due_to_end(at), lifecycle_steps.end, at, policy
    )
    done["unclean"] = _run_for_each(
        unclean_start.due(at, policy), lifecycle_steps.mend_unclean, at, policy
    )
    done["charged_late"] = _run_for_each(
        late_charges.due(at), late_charges.charge, at, policy
    )
    done |= closures.due(at, policy)
    done |= gpu_replacement.due(at, policy)
    done |= courses.end_due(at, policy)
    if waitlist:
        done |= scheduler.place(at, policy)
    done["hours_rolled"] = _roll_hours(at)
    done |= holder_notices.ending(at, policy)
    done |= _offer_adoption(at)
    done |= offers.expire(at, policy)
    done |= series.extend(at, policy)
    return done


def _run_for_each(
    pks: Iterable[int],
    step: Callable[[int, datetime, Policy], bool],
    now: datetime,
    policy: Policy,
) -> int:
    """Run a step for each row in its own transaction."""
    in_transaction = transaction.atomic(durable=True)(step)
    return RowSteps(log, "reservation")(pks, in_transaction, now, policy)


def _offer_adoption(at: datetime) -> dict[str, int]:
    with isolated(log, "the use without a booking is not offered"):
        return adoption.offer(at)
    return {"use_offered": 0}


# --- 8. the Accounts' hours -----------------------------------------------------------


def _roll_hours(now: datetime) -> int:
    with isolated(log, "the Accounts' hours are not rolled up"):
        return roll_account_hours(now=now, held=held_in_hour)
    return 0
