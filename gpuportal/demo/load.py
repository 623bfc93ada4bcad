"""Write the demo lab into an empty database.

Nodes are enrolled first, each in a separate transaction. Everything else, people
included, is one transaction, so an interrupted load can be run again. Shared and
offered bookings come last and may be missing.
"""

import random
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from django.db import connection, transaction

from gpuportal.demo import cast, simulated_nodes
from gpuportal.demo.closed import write_closures
from gpuportal.demo.collaboration import write_people
from gpuportal.demo.hours import write_hours, write_summaries
from gpuportal.demo.lab import (
    COMMANDS,
    GIB,
    GROUPS,
    LOGINS,
    LOST,
    MAINTENANCE,
    NODES,
    OPERATOR,
    ROOT,
)
from gpuportal.demo.minutes import write_minutes
from gpuportal.demo.past_bookings import DemoGpu, DraftBooking, PastBookings, draw
from gpuportal.demo.past_jobs import write_past_jobs
from gpuportal.demo.taken import write_taken
from gpuportal.demo.waitlist_requests import write_waiting
from reservations.models import (
    Account,
    Allocation,
    AuditEntry,
    LedgerEntry,
    Membership,
    Reservation,
    SitePolicy,
    User,
)
from reservations.rules.lifecycle import Kind, State
from telemetry import paths
from telemetry.inventory.enrollment import enroll_node, renew_token
from telemetry.inventory.roster import record_roster
from telemetry.models import Gpu, Node, SampleHour, SampleMinute

PAST = timedelta(days=14)
AHEAD = timedelta(days=5)
GRID_SECONDS = 300


@dataclass(frozen=True)
class LoadedLab:
    """The result: logins (name, password) and the scenes' reservations."""

    logins: list[tuple[str, str]]
    scenes: list[tuple[cast.Scene, Reservation]]
    reservations: int


def load(*, now: datetime, simulation: Path, seed: int = 51) -> LoadedLab:
    """Make people, nodes, history and the running reservations.

    Args:
        now: aware UTC. The history ends and the calendar begins here.
        simulation: folder that the simulated probes read.
        seed: of the random history.

    Raises:
        AlreadyThere: the database has people already.
    """
    if User.objects.exists():
        raise AlreadyThere
    chance = random.Random(seed)
    now = now.replace(second=0, microsecond=0)
    now -= timedelta(minutes=now.minute % (GRID_SECONDS // 60))
    gpus = _nodes(now)
    with transaction.atomic():
        logins, members = _people()
        policy = SitePolicy.current()
        policy.grid_seconds = GRID_SECONDS
        policy.save()
        modest = {i for i, m in enumerate(members) if m.user.username in LOGINS}
        book = PastBookings(
            policy.quota_gpu_seconds,
            policy.gpus_at_once,
            policy.live_reservations,
            now,
            frozenset(modest),
        )
        scenes = _draw_bookings(book, gpus, members, now=now, chance=chance)
        rows = _write(book.drafts, members, now=now)
        write_taken(members, gpus, now=now, chance=random.Random(seed))
        booked = list(zip(book.drafts, rows, strict=True))
        write_minutes(booked, now=now, chance=chance)
        jobs = write_past_jobs(
            [row for row in rows if row.state == State.ENDED], chance=chance
        )
        first = (now - PAST).replace(minute=0)
        write_hours(booked, first=first, now=now, chance=chance)
        write_summaries(booked, jobs)
        write_waiting(members, now=now)
        write_closures(members, now=now)
        AuditEntry.objects.create(
            verb="demo.loaded", subject="site", reason="first run of the demo lab"
        )
    write_people(members, now=now)
    _count_rows()
    by_draft = dict(zip(book.drafts, rows, strict=True))
    simulated_nodes.write_simulation(
        simulation, _actors(book.drafts, members, scenes, now=now), now=now
    )
    return LoadedLab(
        logins, [(scene, by_draft[d]) for scene, d in scenes], len(book.drafts)
    )


def _count_rows() -> None:
    """Update PostgreSQL's statistics before the first roll-up.

    With the statistics of empty tables it may join every minute with every Allocation.
    autovacuum runs only after a minute.
    """
    if connection.vendor != "postgresql":
        return
    filled = (SampleMinute, SampleHour, Reservation, Allocation, LedgerEntry)
    with connection.cursor() as cursor:
        for model in filled:
            cursor.execute(f"ANALYZE {connection.ops.quote_name(model._meta.db_table)}")


class AlreadyThere(Exception):
    """The database has people. The demo lab is only for an empty one."""


def _people() -> tuple[list[tuple[str, str]], list[Membership]]:
    logins = []

    def person(name: str, display: str, hue: int, **fields: object) -> User:
        first, _, last = display.partition(" ")
        user = User(
            username=name,
            display_name=display,
            first_name=first,
            last_name=last,
            email=f"{name}@lab.example",
            hue=hue,
            **fields,
        )
        if name in LOGINS:
            password = secrets.token_urlsafe(9)
            user.set_password(password)
            logins.append((name, password))
        else:
            user.set_unusable_password()
        user.save()
        return user

    person(*OPERATOR, 0, is_staff=True, is_superuser=True)
    root = Account.objects.create(name=ROOT, title="Institute")
    members = []
    for group in GROUPS:
        account = Account.objects.create(
            name=group.name,
            title=group.title,
            parent=root,
            shares=group.shares,
            hue=group.hue,
        )
        for number, (name, display) in enumerate(group.students):
            members.append(
                Membership.objects.create(
                    user=person(name, display, group.hue),
                    account=account,
                    is_head=number == 0 and name != "alice",
                )
            )
    return logins, members


def _nodes(now: datetime) -> list[DemoGpu]:
    gpus = []
    for node in NODES:
        row = _enroll(node.name, now)
        record_roster(info=simulated_nodes.roster(node, at=now.timestamp()), now=now)
        Gpu.objects.filter(node=row, index=MAINTENANCE[1]).update(
            maintenance=node.name == MAINTENANCE[0]
        )
        Gpu.objects.filter(node=row, index=LOST[1]).update(lost=node.name == LOST[0])
    for gpu in Gpu.objects.select_related("node", "pool"):
        gpus.append(DemoGpu(gpu.pk, gpu.node.name, gpu.index, gpu.pool.weight))
    return gpus


def _enroll(name: str, now: datetime) -> Node:
    """Enroll a node and keep its token. A second load gives it a new one."""
    if Node.objects.filter(name=name).exists():
        row, token = renew_token(name=name)
    else:
        row, token = enroll_node(name=name, simulated=True, now=now)
    paths.secret_file(f"node-{name}.token").unlink(missing_ok=True)
    paths.make_secret(f"node-{name}.token", token)
    return row


def _draw_bookings(
    book: PastBookings,
    gpus: list[DemoGpu],
    members: list[Membership],
    *,
    now: datetime,
    chance: random.Random,
) -> list[tuple[cast.Scene, DraftBooking]]:
    """Draw the bookings: the running ones first, then the past, then the days ahead."""
    number = {member.user.username: i for i, member in enumerate(members)}
    at = {(gpu.node, gpu.index): gpu for gpu in gpus}
    scenes = []
    for scene in cast.SCENES:
        draft = DraftBooking(
            student=number[scene.user],
            gpus=tuple(at[scene.node, index] for index in scene.indexes),
            start=_on_grid(now - timedelta(hours=scene.begun_hours)),
            end=_on_grid(now + timedelta(hours=scene.left_hours)),
            util_pct=scene.util_pct,
            purpose=scene.purpose,
            came=scene.came,
        )
        scenes.append((scene, draft))
        book.drafts.append(draft)
    working = [g for g in gpus if (g.node, g.index) not in {LOST, MAINTENANCE}]
    spare = [
        g for g in working if (g.node, g.index) not in {("node-b", 3), ("node-b", 7)}
    ]
    hour = now.replace(minute=0)
    draw(
        book,
        gpus,
        students=len(members),
        first=hour - PAST,
        last=hour,
        tries_per_day=150,
        chance=chance,
    )
    draw(
        book,
        spare,
        students=len(members),
        first=hour + timedelta(hours=1),
        last=hour + AHEAD,
        tries_per_day=100,
        chance=chance,
    )
    return scenes


def _on_grid(at: datetime) -> datetime:
    seconds = int(at.timestamp())
    return at - timedelta(seconds=seconds % GRID_SECONDS)


def _write(
    drafts: list[DraftBooking], members: list[Membership], *, now: datetime
) -> list[Reservation]:
    rows = []
    for draft in drafts:
        member = members[draft.student]
        state = State.ENDED if draft.end <= now else State.CONFIRMED
        if draft.start <= now < draft.end:
            state = State.ACTIVE
        rows.append(
            Reservation(
                user=member.user,
                membership=member,
                start=draft.start,
                end=draft.end,
                booked_end=draft.end,
                kind=Kind.FIRM,
                state=state,
                cost_gpu_seconds=draft.cost_gpu_seconds,
                purpose=draft.purpose,
                created_at=min(now, draft.start) - timedelta(hours=5),
                ended_at=draft.end if state == State.ENDED else None,
                checked_in_at=(
                    draft.start + timedelta(minutes=2)
                    if draft.came and state != State.CONFIRMED
                    else None
                ),
                decision={"rule": "demo", "text": "Made with the demo lab."},
            )
        )
    Reservation.objects.bulk_create(rows)
    Allocation.objects.bulk_create(
        Allocation(
            reservation=row,
            gpu_id=gpu.pk,
            start=draft.start,
            end=draft.end,
            live=row.state != State.ENDED,
        )
        for draft, row in zip(drafts, rows, strict=True)
        for gpu in draft.gpus
    )
    LedgerEntry.objects.bulk_create(_ledger(rows))
    return rows


def _ledger(rows: Iterable[Reservation]) -> Iterable[LedgerEntry]:
    hold, release = LedgerEntry.Kind.HOLD, LedgerEntry.Kind.RELEASE
    charge = LedgerEntry.Kind.CHARGE
    for row in rows:
        cost = row.cost_gpu_seconds
        lines = [(hold, cost, row.created_at, "booked firm")]
        if row.state == State.ENDED:
            lines.append((release, -cost, row.end, "ended"))
            lines.append((charge, cost, row.end, "ended"))
        for kind, amount, at, reason in lines:
            yield LedgerEntry(
                membership_id=row.membership_id,
                reservation=row,
                kind=kind,
                gpu_seconds=amount,
                at=at,
                reason=reason,
            )


def _actors(
    drafts: list[DraftBooking],
    members: list[Membership],
    scenes: list[tuple[cast.Scene, DraftBooking]],
    *,
    now: datetime,
) -> dict[str, list[simulated_nodes.Actor]]:
    """Return the scripted processes per node: the scenes', then the calendar's."""
    actors: dict[str, list[simulated_nodes.Actor]] = {node.name: [] for node in NODES}
    pid = 40_000

    def act(node: str, index: int, **fields: object) -> None:
        nonlocal pid
        pid += 7
        actors[node].append(
            {
                "gpu": simulated_nodes.gpu_uuid(node, index),
                "pid": pid,
                "uid": 2000,
                "job": None,
            }
            | fields
        )

    staged = {draft for _, draft in scenes}
    for scene, draft in scenes:
        for index in scene.indexes if scene.actor else ():
            act(
                scene.node,
                index,
                user=scene.actor,
                command=scene.command,
                memory_bytes=scene.memory_bytes,
                util_pct=scene.util_pct,
                wobble_pct=4 if scene.util_pct else 0,
                **{"from": draft.start.timestamp(), "until": draft.end.timestamp()},
            )
    squat = cast.SQUATTER
    act(
        squat.node,
        squat.index,
        user=squat.user,
        command=squat.command,
        memory_bytes=squat.memory_bytes,
        util_pct=squat.util_pct,
        wobble_pct=8,
        **{
            "from": now.timestamp() - 900,
            "until": (now + timedelta(hours=2)).timestamp(),
        },
    )
    for number, draft in enumerate(drafts):
        if draft in staged or draft.end <= now:
            continue
        name = members[draft.student].user.username
        for gpu in draft.gpus:
            share = 0.35 + 0.05 * (number % 10)
            act(
                gpu.node,
                gpu.index,
                user=name,
                command=COMMANDS[number % 5],
                memory_bytes=int(share * (80 if gpu.node == "node-a" else 24) * GIB),
                util_pct=draft.util_pct,
                wobble_pct=6,
                **{
                    "from": draft.start.timestamp() + 60 + 7 * (number % 30),
                    "until": draft.end.timestamp() - 30,
                },
            )
    return actors
