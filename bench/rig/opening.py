"""The minute in which the calendar opens: the course, its students, the checks.

Each student looks at the calendar, then books as people do: the slot they want or,
after a refusal, the next slot that it names, with a short pause between two clicks.
Half of them want the same hot hours on the same few Gpus.
"""

import gzip
import http.client
import json
import random
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

HOUR = 3600
WEIGHT = 10
WEEK_SECONDS = 7 * 24 * HOUR
QUOTA_HOURS = 10
"""Of one student. Three bookings of four hours are more than that."""
BOOKINGS = 3
LENGTH_HOURS = 4
TRIES = 4
"""Refusals after which a student gives a booking up."""
GROUPS = 10
RUSH_RATIO = 1 / 6
"""Part of the minute in which students who want the hot hours make their first
click.
"""


@dataclass(frozen=True)
class Student:
    """One person of the course, and their first wish."""

    number: int
    token: str
    membership: int
    group: int
    hot: bool


@dataclass
class Told:
    """The answers that one student got."""

    student: Student
    first_click: float = 0.0
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: list[int] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    booked: int = 0
    error: str = ""


def make_course(students: int, gpus: int, *, now: datetime) -> list[Student]:
    """Write the site: Gpus in nodes of 8, groups of students, two of them limited."""
    from reservations.accounts.api_tokens import create_token
    from reservations.models import Account, Membership, SitePolicy, User
    from telemetry.models import Gpu, Node, Pool

    policy = SitePolicy.current()
    policy.quota_gpu_seconds = QUOTA_HOURS * HOUR * WEIGHT
    policy.save()
    root = Account.objects.create(name="institute")
    pool = Pool.objects.create(gpu_class="bench 80 GB", weight=WEIGHT)
    for number in range(-(-gpus // 8)):
        node = Node.objects.create(name=f"bench-{number:03}", simulated=True)
        Gpu.objects.bulk_create(
            Gpu(
                uuid=f"GPU-{number:03}-{index}",
                node=node,
                pool=pool,
                index=index,
                name="bench",
                memory_total_bytes=80 * 2**30,
            )
            for index in range(min(8, gpus - 8 * number))
        )
    each = -(-students // GROUPS)
    accounts = [
        Account.objects.create(
            name=f"group{number}",
            parent=root,
            # Two groups may hold less than their members together.
            quota_gpu_seconds=each * QUOTA_HOURS * HOUR * WEIGHT // 2
            if number < 2
            else None,
        )
        for number in range(GROUPS)
    ]
    made = []
    for number in range(students):
        group = number % GROUPS
        user = User.objects.create(username=f"student{number:03}")
        member = Membership.objects.create(user=user, account=accounts[group])
        token = create_token(
            user=user, label="bench", scopes=["read", "book"], days=1, now=now
        )[1]
        hot = number // GROUPS % 2 == 0
        made.append(Student(number, token, member.pk, group, hot))
    return made


class Client:
    """A student's browser: one persistent connection."""

    def __init__(self, port: int, told: Told) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        self.told = told
        self.headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "gzip",
            "Authorization": f"Bearer {told.student.token}",
        }

    def ask(self, what: str, method: str, path: str, body: object = None) -> Any:
        """Return (status, JSON). The time that it took is recorded under ``what``."""
        begun = time.monotonic()
        data = json.dumps(body) if body is not None else None
        self.connection.request(method, f"/api/v1{path}", data, self.headers)
        answer = self.connection.getresponse()
        raw = answer.read()
        self.told.seconds[what].append(time.monotonic() - begun)
        self.told.statuses.append(answer.status)
        if raw[:2] == b"\x1f\x8b":
            raw = gzip.decompress(raw)
        return answer.status, json.loads(raw) if raw[:1] in (b"{", b"[") else {}


def open_calendar(
    students: Sequence[Student],
    gpu_ids: Sequence[int],
    ports: Sequence[int],
    *,
    hour: datetime,
    seconds: float,
) -> tuple[list[Told], float]:
    """Let all of them book. Return (each student's answers, seconds until the last
    one).
    """
    told = [Told(student) for student in students]
    begun = time.monotonic() + 0.5
    threads = [
        threading.Thread(
            target=_live,
            args=(one, gpu_ids, ports[one.student.number % len(ports)], hour),
            kwargs={"begun": begun, "seconds": seconds},
        )
        for one in told
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told, time.monotonic() - begun


def _live(
    told: Told,
    gpu_ids: Sequence[int],
    port: int,
    hour: datetime,
    *,
    begun: float,
    seconds: float,
) -> None:
    """Run one student's minute."""
    student = told.student
    chance = random.Random(student.number)
    spread = seconds * (RUSH_RATIO if student.hot else 0.5)
    told.first_click = chance.random() * spread
    time.sleep(max(0.0, begun + told.first_click - time.monotonic()))
    try:
        client = Client(port, told)
        span = f"?start={_z(hour)}&end={_z(hour + timedelta(days=7))}"
        client.ask("calendar", "GET", f"/calendar{span}")
        for wish in wishes(student, gpu_ids, hour, chance):
            _book(client, wish, chance, thought=seconds / 60)
    except (OSError, http.client.HTTPException, ValueError) as error:
        told.error = repr(error)


def _book(
    client: Client, wish: dict[str, object], chance: random.Random, *, thought: float
) -> None:
    """Preview, book, and follow the portal's advice after a refusal."""
    told = client.told
    client.ask("preview", "POST", "/reservations/preview", wish)
    for _ in range(TRIES):
        status, answer = client.ask("book", "POST", "/reservations", wish)
        if status == 201:
            told.booked += 1
            return
        told.refusals.append(str(answer.get("code")))
        slot = answer.get("next_slot")
        if status != 409 or not slot:
            return
        wish = {name: slot[name] for name in ("gpu_ids", "start", "end")}
        time.sleep(chance.uniform(0.5, 2.0) * thought)


def wishes(
    student: Student, gpu_ids: Sequence[int], hour: datetime, chance: random.Random
) -> Iterable[dict[str, object]]:
    """Yield a student's wishes: tomorrow noon on the best Gpus, or any slot."""
    hot_gpus = gpu_ids[: max(2, len(gpu_ids) // 10)]
    for number in range(BOOKINGS):
        if student.hot:
            ahead, gpu = 24 + LENGTH_HOURS * number, chance.choice(hot_gpus)
        else:
            ahead, gpu = chance.randrange(14, 130), chance.choice(gpu_ids)
        start = hour + timedelta(hours=ahead)
        end = start + timedelta(hours=LENGTH_HOURS)
        yield {"gpu_ids": [gpu], "start": _z(start), "end": _z(end)}


def _z(at: datetime) -> str:
    return f"{at:%Y-%m-%dT%H:%M:%SZ}"


# --- checks
# ----------------------------------------------------------------------------


def overlaps() -> int:
    """Count live Allocations that overlap, by the database's own arithmetic."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT COUNT(*) FROM reservations_allocation a JOIN"
            " reservations_allocation b ON a.gpu_id = b.gpu_id AND a.id < b.id"
            ' WHERE a.live AND b.live AND a.start < b."end" AND b.start < a."end"'
        )
        return int(cursor.fetchone()[0])


def over_quota() -> list[str]:
    """Name every Membership and group whose fullest 7 days hold too much firm cost.

    It has its own arithmetic, over every window that begins where a booking begins or
    ends where one ends, because the sum over a window is piecewise linear between
    those.
    """
    from reservations.models import Account, Membership, Reservation, SitePolicy
    from reservations.rules.lifecycle import Kind

    default = SitePolicy.current().quota_gpu_seconds
    spends: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for row in Reservation.objects.live().filter(kind=Kind.FIRM):
        start, end = int(row.start.timestamp()), int(row.end.timestamp())
        spends[row.membership_id].append((start, end, row.cost_gpu_seconds))
    found = []
    below: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for member in Membership.objects.select_related("account"):
        own = spends.get(member.pk, [])
        below[member.account_id] += own
        most = default if member.quota_gpu_seconds is None else member.quota_gpu_seconds
        held = fullest(own)
        if held > most:
            found.append(f"{member} holds {held} of {most} weighted GPU-seconds")
    for account in Account.objects.exclude(quota_gpu_seconds=None):
        held = fullest(below[account.pk])
        if held > (account.quota_gpu_seconds or 0):
            found.append(f"{account} holds {held} of {account.quota_gpu_seconds}")
    return found


def fullest(spends: Sequence[tuple[int, int, int]]) -> int:
    """Return the cost in the fullest 7 days of (start, end, cost)."""
    begins = {start for start, _end, _cost in spends}
    begins |= {end - WEEK_SECONDS for _start, end, _cost in spends}
    return max((_within(spends, begin) for begin in begins), default=0)


def _within(spends: Sequence[tuple[int, int, int]], begin: int) -> int:
    """Return the cost within the 7 days from an instant. A booking costs the same each
    second.
    """
    return sum(
        cost
        // (end - start)
        * max(0, min(end, begin + WEEK_SECONDS) - max(start, begin))
        for start, end, cost in spends
    )


def over_caps() -> list[str]:
    """Name everybody with more bookings or Gpus at once than one person may have."""
    from reservations.models import Allocation, SitePolicy

    policy = SitePolicy.current()
    held: dict[int, list[Any]] = defaultdict(list)
    rows = Allocation.objects.filter(live=True).select_related("reservation")
    for row in rows:
        held[row.reservation.user_id].append(row)
    found = []
    for user, own in held.items():
        most = max(sum(a.start <= b.start < a.end for a in own) for b in own)
        if most > policy.gpus_at_once:
            found.append(f"user {user} holds {most} GPUs at once")
        if len({a.reservation_id for a in own}) > policy.live_reservations:
            found.append(f"user {user} has {len(own)} bookings")
    return found


# --- distribution
# ----------------------------------------------------------------------


def granted_hours(students: Sequence[Student]) -> dict[int, float]:
    """Return the GPU-hours that each student holds in the end, by number."""
    from reservations.models import Reservation

    hours: dict[int, float] = defaultdict(float)
    for row in Reservation.objects.live().order_by():
        hours[row.membership_id] += row.cost_gpu_seconds / HOUR / WEIGHT
    return {one.number: hours[one.membership] for one in students}


def jain(values: Sequence[float]) -> float:
    """Return Jain's index: 1 if all got the same, 1/n if one got everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


def fairness(told: Sequence[Told], hours: dict[int, float]) -> dict[str, Any]:
    """Return Jain over the students, the first and the last quarter, means by group."""
    order = sorted(told, key=lambda one: one.first_click)
    quarter = max(1, len(order) // 4)
    groups: dict[int, list[float]] = defaultdict(list)
    for one in told:
        groups[one.student.group].append(hours[one.student.number])

    def mean(some: Iterable[Told]) -> float:
        return statistics.fmean(hours[one.student.number] for one in some)

    return {
        "jain": jain(list(hours.values())),
        "least": min(hours.values()),
        "mean": statistics.fmean(hours.values()),
        "most": max(hours.values()),
        "first_quarter": mean(order[:quarter]),
        "last_quarter": mean(order[-quarter:]),
        "hot": mean(one for one in told if one.student.hot),
        "others": mean(one for one in told if not one.student.hot),
        "groups": [statistics.fmean(own) for _group, own in sorted(groups.items())],
    }
