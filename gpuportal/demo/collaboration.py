"""How people of the demo lab work together, made through the services.

There are a course that ends, a guest with a sponsor, changed shares, a shared booking,
an offered one, and one that repeats every week. The services make them, so history,
audit and notices are as on any site. Items for which the drawn calendar has no room are
left out.
"""

import logging
from collections.abc import Sequence
from datetime import datetime, time, timedelta

from django.utils import timezone

from gpuportal.demo.lab import LOGINS, OPERATOR, ROOT
from reservations.accounts.tree import service as accounts
from reservations.accounts.tree.tree_edits import Edit
from reservations.models import Account, Membership, Reservation, User
from reservations.rules.lifecycle import State
from reservations.series import service as series
from reservations.series.recurrence import Repeat, Rule
from reservations.sharing import co_use, offers
from telemetry.models import Gpu
from telemetry.protocol.coded_error import CodedError

COURSE = ("dl-course", "Deep learning course")
COURSE_STUDENTS = ("tom", "sofia", "ahmed")
COURSE_DAYS = 60
GUEST = ("greta", "Greta Larsen")
GUEST_DAYS = 21
SPARE = ("node-b", 7)
"""No drawn booking is on it."""
log = logging.getLogger(__name__)


def write_people(members: Sequence[Membership], *, now: datetime) -> None:
    """Make all of it, each item in a separate transaction."""
    by_login = {member.user.username: member for member in members}
    for step in (_accounts, _shared, _offered, _weekly):
        try:
            step(by_login, now)
        except CodedError as refusal:
            log.info("the demo lab goes without %s: %s", step.__name__, refusal)


def _accounts(by_login: dict[str, Membership], now: datetime) -> None:
    """A course, a guest of it, and a group that was given more shares."""
    omar = User.objects.get(username=OPERATOR[0])
    name, title = COURSE
    ends_at = now + timedelta(days=COURSE_DAYS)
    guest = {"username": GUEST[0], "display_name": GUEST[1]}
    edits = [
        Edit(
            "account",
            None,
            None,
            {"name": name, "title": title, "parent": ROOT, "ends_at": ends_at},
        ),
        *(
            Edit("member", None, None, {"user": login, "account": name})
            for login in COURSE_STUDENTS
        ),
        Edit("user", None, None, guest),
        Edit(
            "member",
            None,
            None,
            {
                "user": GUEST[0],
                "account": "vision",
                "sponsor": "wei",
                "expires_at": now + timedelta(days=GUEST_DAYS),
            },
        ),
    ]
    accounts.save(edits=edits, actor=omar, reason="this term's course", now=now)
    robotics = Account.objects.get(name="robotics")
    more = Edit("account", robotics.pk, robotics.version, {"shares": 3})
    accounts.save(
        edits=[more], actor=omar, reason="they paid for two GPUs of node-b", now=now
    )


def _ahead(member: Membership, now: datetime) -> Reservation | None:
    rows = Reservation.objects.filter(membership=member, state=State.CONFIRMED)
    return rows.filter(start__gt=now + timedelta(hours=2)).order_by("start").first()


def _shared(by_login: dict[str, Membership], now: datetime) -> None:
    """Share Alice's running booking with Wei."""
    alice = by_login["alice"]
    row = Reservation.objects.filter(membership=alice, state=State.ACTIVE).first()
    if row is not None:
        co_use.share(reservation_id=row.pk, user=alice.user, username="wei", now=now)


def _offered(by_login: dict[str, Membership], now: datetime) -> None:
    """Let Wei offer Alice a booking, which she has not answered."""
    wei = by_login["wei"]
    if (row := _ahead(wei, now)) is not None:
        offers.offer(
            reservation_id=row.pk,
            user=wei.user,
            to="alice",
            message="I am at a conference: would you use it?",
            now=now,
        )


def _weekly(by_login: dict[str, Membership], now: datetime) -> None:
    """Book the spare Gpu for an hour every week.

    The user has quota left and is not one of the demo logins, whose quota this would
    use up.
    """
    gpu = Gpu.objects.get(node__name=SPARE[0], index=SPARE[1])
    local = timezone.localtime(now)
    rule = Rule(
        repeat=Repeat.WEEKLY,
        first_day=local.date() + timedelta(days=2),
        local_start=time(10),
        zone=str(timezone.get_current_timezone()),
        duration_seconds=3600,
        times=6,
    )
    for login, member in by_login.items():
        if login in LOGINS:
            continue
        wanted = series.checked_wish(
            user=member.user,
            membership=member,
            gpu_ids=[gpu.pk],
            rule=rule,
            purpose="weekly benchmark",
            now=now,
        )
        if any(one.state == "booked" for one in series.rehearse(wanted, now=now)):
            series.create(wanted, skip_refused=True, now=now)
            return
