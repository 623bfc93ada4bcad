"""Replays of the site's own past: request, computation by a worker, result, cancel.

A row changes by compare-and-set. The worker stores its progress and checks for a cancel
some times a second. It gives up after ``LIMIT_SECONDS``. A row whose worker is gone is
marked as failed when the next replay is requested or the row is read.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus

from django.db import transaction

from reservations.models import PolicyReplay, User
from reservations.reports.replay.comparison import (
    EDITABLE,
    ReplayOutcome,
    edited,
    outcome,
)
from reservations.reports.replay.site_rules import AccountEdit
from reservations.reports.replay.site_trace import (
    CountedFrom,
    SiteTrace,
    site_trace,
    site_tree,
)
from reservations.rules.errors import NotFound
from reservations.store.audit_log import audit_act
from reservations.store.booking_facts import site_policy
from telemetry.models import Pool
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence

LIMIT_SECONDS = 120.0
"""Processor time of both replays together. A month of a course takes a few seconds."""
STALE = timedelta(seconds=300)
MOST_OPEN = 2
MOST_KEPT = 200
TELL_SECONDS = 0.5
State = PolicyReplay.State


class TooManyReplays(CodedError):
    """As many replays are open as the limit."""

    code = "too-many-replays"
    title = sentence("Too many replays")
    status = HTTPStatus.UNPROCESSABLE_ENTITY


class _Stopped(Exception):
    """The replay was cancelled, or takes too long."""

    def __init__(self, problem: str = "") -> None:
        self.problem = problem
        super().__init__(problem)


@dataclass(frozen=True, slots=True)
class ReplayPeriod:
    """The past to replay, and how its jobs are read."""

    start: datetime
    end: datetime
    counted_from: CountedFrom
    pool: Pool | None

    def trace(self) -> SiteTrace:
        """Read the trace."""
        return site_trace(
            self.start, self.end, counted_from=self.counted_from, pool=self.pool
        )


def ask_replay(
    *,
    user: User,
    span: ReplayPeriod,
    fields: Mapping[str, int],
    accounts: Mapping[str, AccountEdit] | None = None,
    now: datetime,
) -> PolicyReplay:
    """Store a request for a worker.

    Args:
        fields: other values of the policy's ``EDITABLE`` fields.
        accounts: other shares and quotas, by an Account's name. All others are read
            when the worker begins.

    Raises:
        PolicyInvalid: they contradict each other, or the rest of the policy.
        TooManyReplays: ``MOST_OPEN`` are open.
    """
    policy = site_policy()
    edited(policy, fields)
    edits = dict(accounts or {})
    rules = {one.name: one for one in site_tree(None).accounts if one.name in edits}
    before = {
        name: AccountEdit(rule.shares, rule.quota_gpu_seconds)
        for name, rule in rules.items()
    }
    with transaction.atomic(durable=True):
        fail_stale(now=now)
        if (
            PolicyReplay.objects.filter(state__in=PolicyReplay.OPEN).count()
            >= MOST_OPEN
        ):
            raise TooManyReplays(
                sentence(
                    "{most} replays are still running. Wait, or cancel one",
                    most=MOST_OPEN,
                )
            )
        row = PolicyReplay.objects.create(
            asked_by=user,
            asked_at=now,
            from_at=span.start,
            to_at=span.end,
            counted_from=span.counted_from,
            pool=span.pool,
            gpus=0,
            present={name: getattr(policy, name) for name in EDITABLE}
            | {"accounts": {n: one.to_json() for n, one in before.items()}},
            edited={name: fields[name] for name in EDITABLE}
            | {"accounts": {n: edits[n].to_json() for n in before}},
        )
        old = PolicyReplay.objects.exclude(state__in=PolicyReplay.OPEN)[MOST_KEPT:]
        PolicyReplay.objects.filter(pk__in=[one.pk for one in old]).delete()
        audit_act(
            verb="replay.asked",
            subject=f"replay:{row.pk}",
            actor=user,
            now=now,
            edited=row.edited,
        )
    return row


def fail_stale(*, now: datetime) -> int:
    """Fail open replays whose worker or message is gone. Return how many."""
    return PolicyReplay.objects.filter(
        state__in=PolicyReplay.OPEN, asked_at__lt=now - STALE
    ).update(
        state=State.FAILED,
        ended_at=now,
        problem=sentence("no worker answered. Start the replay again"),
    )


def cancel_replay(*, pk: int, user: User, now: datetime) -> bool:
    """Cancel an open replay. False: it has ended already.

    Raises:
        NotFound: no such replay.
    """
    if not PolicyReplay.objects.filter(pk=pk).exists():
        raise NotFound(what=sentence("replay #{pk}", pk=pk))
    with transaction.atomic(durable=True):
        moved = PolicyReplay.objects.filter(pk=pk, state__in=PolicyReplay.OPEN).update(
            state=State.CANCELLED, ended_at=now, doing=""
        )
        if moved:
            audit_act(
                verb="replay.cancelled", subject=f"replay:{pk}", actor=user, now=now
            )
    return bool(moved)


def make_replay(*, pk: int, clock: Callable[[], datetime]) -> str:
    """Run one waiting replay. Return its final state.

    `clock`: returns aware UTC. It is read at the start and at the end.
    """
    rows = PolicyReplay.objects.filter(pk=pk)
    if not rows.filter(state=State.WAITING).update(
        state=State.RUNNING, started_at=clock(), doing=sentence("reading past bookings")
    ):
        found = rows.first()
        return found.state if found is not None else "gone"
    row = rows.select_related("pool").get()
    running = rows.filter(state=State.RUNNING)
    try:
        ended = _compare(row, running)
    except _Stopped as stopped:
        ended = {"state": State.FAILED, "problem": stopped.problem}
    # A replay that was cancelled meanwhile stays cancelled.
    running.update(ended_at=clock(), doing="", **ended)
    return rows.values_list("state", flat=True).get()


def _compare(row: PolicyReplay, running) -> dict[str, object]:  # type: ignore[no-untyped-def]
    """Replay twice. Return the fields of a row that is done, or failed."""
    span = ReplayPeriod(row.from_at, row.to_at, _counted(row), row.pool)
    trace = span.trace()
    if not trace.jobs:
        return {
            "state": State.FAILED,
            "problem": sentence("nothing was booked in that time"),
        }
    running.update(jobs=len(trace.jobs), gpus=trace.gpus)
    base, tree = site_policy(), site_tree(row.pool)
    watch = _ReplayProgress(running)
    found: dict[str, ReplayOutcome] = {}
    for number, (name, doing) in enumerate(
        (
            ("present", sentence("the current rules")),
            ("edited", sentence("the edited rules")),
        )
    ):
        rules = getattr(row, name)
        edits = {
            account: AccountEdit.from_json(edit)
            for account, edit in rules.get("accounts", {}).items()
        }
        found[name] = outcome(
            trace.jobs,
            edited(base, rules),
            gpus=trace.gpus,
            weight=trace.weight,
            tree=tree.edited(edits, quota_gpu_seconds=rules["quota_gpu_seconds"]),
            progress=watch.teller(doing, done=number / 2),
        )
    return {
        "state": State.DONE,
        "done_ratio": 1.0,
        "before": found["present"].to_json(),
        "after": found["edited"].to_json(),
    }


def _counted(row: PolicyReplay) -> CountedFrom:
    return "start" if row.counted_from == "start" else "asked"


class _ReplayProgress:
    """Stores the progress, and ends a cancelled or too long replay."""

    def __init__(self, running) -> None:  # type: ignore[no-untyped-def]
        self.running = running
        self.begun = time.process_time()
        self.told = time.monotonic()

    def teller(self, doing: str, *, done: float) -> Callable[[float], None]:
        """Return the progress function of one of the two replays. ``done``: the part
        before.
        """

        def tell(ratio: float) -> None:
            if time.process_time() - self.begun > LIMIT_SECONDS:
                raise _Stopped(
                    sentence(
                        "it took more than {seconds} s. Choose fewer days or one class",
                        seconds=f"{LIMIT_SECONDS:.0f}",
                    )
                )
            if time.monotonic() - self.told < TELL_SECONDS:
                return
            self.told = time.monotonic()
            if not self.running.update(doing=doing, done_ratio=done + ratio / 2):
                raise _Stopped

        return tell
