"""Ingest's judge: readings joined with the calendar.

It joins three apps: telemetry has the readings, the calendar the holders, and Jobs the
owners of processes. It judges a thousand times a second and never reads the database.
It reads a HoldingsPicture, which a separate thread updates on every change of the
calendar and every five seconds.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from django.db import Error as DatabaseError
from django.db import close_old_connections
from redis import Redis, RedisError

from placement.models import Job
from reservations.models import UNIX_LOGIN_UNKNOWN, SitePolicy, User
from reservations.presence.attribution import HoldingInfo, OwnerLookup, holder_present
from reservations.presence.gpu_findings import GpuFacts, Watcher, WatchPolicy
from reservations.presence.holders import (
    current_holdings,
    next_holdings,
    recent_holdings,
)
from reservations.presence.intruder_escalation import Suspect
from telemetry.ingest.complaints import Complaints
from telemetry.live.broadcast import CALENDAR_CHANGED
from telemetry.models import Alert, Gpu, TelemetryPolicy
from telemetry.protocol.gpu_state import GpuState
from telemetry.protocol.sample import GpuReading
from telemetry.protocol.units import MIB_BYTES
from telemetry.rules.bare_state import bare_state
from telemetry.rules.finding_rules import Finding

REFRESH_SECONDS = 5.0
LOGINS_SECONDS = 60.0
RECENT_SECONDS = 30 * 60
"""How long after the end a process of the holder counts as an overrun."""
ENDED_JOBS_SECONDS = 10 * 60
"""How long after its end a Job still has an owner, because its last processes may
linger."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HoldingsPicture:
    """The holders around one instant, and the data that map processes to people."""

    holdings: dict[int, tuple[HoldingInfo, ...]] = field(default_factory=dict)
    """By Gpu: the booking that ended recently, the running one, the next one."""
    owners: OwnerLookup = field(default_factory=OwnerLookup)
    policy: WatchPolicy = field(default_factory=WatchPolicy)
    foreign: frozenset[int] = frozenset()
    """Gpus that another system manages."""

    def at(
        self, gpu_id: int, now: datetime
    ) -> tuple[HoldingInfo | None, HoldingInfo | None]:
        """Return (the holder of the Gpu at an instant, the last holder before that)."""
        holder = before = None
        for info in self.holdings.get(gpu_id, ()):
            if info.end <= now:
                before = info
            elif info.start <= now:
                holder = info
        return holder, before


@dataclass(frozen=True, slots=True)
class IntruderScene:
    """A Gpu with an intruder, as it was last judged."""

    gpu_id: int
    uuid: str
    holding: HoldingInfo
    suspects: tuple[Suspect, ...]
    arrived_at: datetime
    """Arrival of the newest sample, by the server's clock."""


def load_picture(now: datetime, logins: dict[str, int]) -> HoldingsPicture:
    """Read the calendar with its co-users, the live Jobs and the policies, with ten
    queries."""
    recent = recent_holdings(now, within_seconds=RECENT_SECONDS)
    parts = (recent, current_holdings(now), next_holdings(now))
    gpu_ids = {gpu_id for part in parts for gpu_id in part}
    since = now - timedelta(seconds=ENDED_JOBS_SECONDS)
    jobs = Job.objects.live() | Job.objects.filter(ended_at__gte=since)
    policy = load_policy()
    return HoldingsPicture(
        holdings={
            gpu_id: tuple(part[gpu_id] for part in parts if gpu_id in part)
            for gpu_id in gpu_ids
        },
        owners=OwnerLookup(
            jobs=dict(jobs.values_list("pk", "owner_id")),
            logins=logins,
            whitelist=policy.judge.whitelist,
            whitelist_bytes=policy.judge.whitelist_memory_mib * MIB_BYTES,
        ),
        policy=policy,
        foreign=frozenset(
            Gpu.objects.filter(foreign=True).values_list("pk", flat=True)
        ),
    )


def load_policy() -> WatchPolicy:
    """Return every threshold: the telemetry policy's and those of the release rules."""
    site = SitePolicy.current()
    return WatchPolicy(
        judge=TelemetryPolicy.current().to_policy(),
        idle_util_pct=site.idle_util_pct,
        idle_seconds=site.idle_seconds,
        no_show_seconds=site.no_show_seconds,
        grace_seconds=site.stop_grace_seconds,
    )


def load_logins() -> dict[str, int]:
    """Return Users by Unix login, or by portal name if the operator set no login.

    A name that a person may have chosen at an identity provider is no Unix login.
    """
    rows = list(
        User.objects.order_by()
        .exclude(UNIX_LOGIN_UNKNOWN)
        .values_list("pk", "username", "unix_user")
    )
    by_name = {username: pk for pk, username, unix_user in rows if not unix_user}
    return by_name | {unix_user: pk for pk, _, unix_user in rows if unix_user}


class CalendarJudge:
    """The judge, the findings and the holder's presence, which Ingest calls."""

    def __init__(self) -> None:
        self._complaints = Complaints(logger)
        self._picture: HoldingsPicture | None = None
        self._logins: dict[str, int] = {}
        self._logins_at: datetime | None = None
        self._watcher = Watcher(WatchPolicy())
        self._findings: dict[int, tuple[Finding, ...]] = {}
        self._scenes: dict[int, IntruderScene] = {}

    # --- called by Ingest
    # -------------------------------------------------------------------

    def judge(
        self, gpu_id: int, reading: GpuReading | None, age_seconds: float, now: datetime
    ) -> GpuState:
        """Return the state of a Gpu. Its findings are kept for `findings`."""
        picture = self._picture
        if picture is None:
            # Without the calendar no process counts as an intruder or a squatter.
            return bare_state(reading, age_seconds=age_seconds)
        self._watcher.policy = picture.policy
        holding, before = picture.at(gpu_id, now)
        verdict = self._watcher.judge(
            gpu_id,
            reading,
            age_seconds=age_seconds,
            now=now,
            facts=GpuFacts(foreign=gpu_id in picture.foreign),
            owners=picture.owners,
            holding=holding,
            before=before,
        )
        self._findings[gpu_id] = verdict.findings
        if verdict.suspects and holding is not None and reading is not None:
            arrived_at = now - timedelta(seconds=age_seconds)
            self._scenes[gpu_id] = IntruderScene(
                gpu_id, reading.uuid, holding, verdict.suspects, arrived_at
            )
        else:
            self._scenes.pop(gpu_id, None)
        return verdict.state

    def scenes(self) -> list[IntruderScene]:
        """Return the Gpus with an intruder now. May be called from any thread."""
        return list(self._scenes.values())

    @property
    def picture(self) -> HoldingsPicture | None:
        """Return the newest picture; None before the calendar was first read."""
        return self._picture

    def findings(self, gpu_id: int) -> Iterable[Finding]:
        """Return the findings of a Gpu from its last judgement."""
        return self._findings.get(gpu_id, ())

    def holder_present(self, gpu_id: int, reading: GpuReading, now: datetime) -> bool:
        """Return whether the holder at that instant runs a process on the Gpu."""
        picture = self._picture
        if picture is None:
            return False
        holding, _before = picture.at(gpu_id, now)
        return holder_present(reading, holding, picture.owners)

    # --- the thread that updates the picture
    # ------------------------------------------------

    def refresh(self, now: datetime) -> None:
        """Read the picture again."""
        age = now - self._logins_at if self._logins_at else None
        if age is None or age.total_seconds() > LOGINS_SECONDS:
            self._logins, self._logins_at = load_logins(), now
        picture = load_picture(now, self._logins)
        if self._picture is None:
            self._adopt_open_findings(picture.policy)
        self._picture = picture

    def _adopt_open_findings(self, policy: WatchPolicy) -> None:
        """Take over the findings of a previous ingest."""
        self._watcher.policy = policy
        rows = Alert.objects.open().exclude(gpu=None)
        for gpu_id, rule, number in rows.values_list(
            "gpu_id", "rule", "reservation_id"
        ):
            self._watcher.adopt(gpu_id, rule, number)

    def run(self, stop: threading.Event, connect: Callable[[], Redis]) -> None:
        """Refresh on each change of the calendar, and at regular intervals."""
        while not stop.is_set():
            try:
                with connect() as client, client.pubsub() as pubsub:
                    pubsub.subscribe(CALENDAR_CHANGED)
                    self._refresh_on_changes(stop, pubsub)
            except RedisError as error:
                self._complaints.add("the calendar's changes are not heard", error)
                self._try_refresh()
                stop.wait(REFRESH_SECONDS)
        close_old_connections()

    def _refresh_on_changes(self, stop: threading.Event, pubsub) -> None:  # type: ignore[no-untyped-def]
        left_seconds = 0.0
        while not stop.is_set():
            if left_seconds <= 0:
                self._try_refresh()
                left_seconds = REFRESH_SECONDS
            # Short waits, so that a stop is not delayed.
            message = pubsub.get_message(ignore_subscribe_messages=True, timeout=0.5)
            left_seconds = 0.0 if message else left_seconds - 0.5

    def _try_refresh(self) -> None:
        close_old_connections()
        try:
            self.refresh(datetime.now(UTC))
        except DatabaseError as error:
            # Keep the last picture: without the database nothing can be booked either.
            self._complaints.add("the calendar cannot be read", error)
        except Exception:
            # If this thread ended silently, the picture would become outdated.
            logger.exception("the calendar cannot be read")
