"""Ingest's judge: readings joined with the calendar, and the Alerts of the join.

``CalendarJudge`` keeps what the calendar says about now and reads it anew when
told (Redis channel ``reservations.changed``) or after five seconds. Without the
database it goes on with what it last knew.
"""

import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

from reservations.domain.watch import (
    Finding,
    GpuFacts,
    HoldingInfo,
    Owners,
    Rule,
    Verdict,
    Watcher,
    WatchPolicy,
    holder_present,
)
from reservations.models import SitePolicy, User
from reservations.snapshots.holders import current_holdings, recent_holdings
from telemetry import services as telemetry
from telemetry.domain.sample import GpuReading
from telemetry.domain.state import GpuState

REFRESH_SECONDS = 5.0
OVERRUN_SECONDS = 15 * 60
"""How long after its end a Reservation's processes count as its overrun."""
TELL_SECONDS = 60.0
"""A finding that stands is told again this often, so that it is known to stand."""


class CalendarJudge:
    """Answers ``judge`` and ``holder_present`` for ``telemetry.ingest.Ingest``.

    Args:
        job_owners: returns the User's key by live Job, from the floor above.
    """

    def __init__(self, job_owners: Callable[[], Mapping[int, int]]) -> None:
        self._job_owners = job_owners
        self._lock = threading.Lock()
        self._due_at: datetime | None = None
        self._holdings: dict[int, HoldingInfo] = {}
        self._ended: dict[int, HoldingInfo] = {}
        self._owners = Owners()
        self._watcher = Watcher(WatchPolicy())
        self._verdicts: dict[int, Verdict] = {}
        self._told: dict[tuple[int, Rule], datetime] = {}

    def calendar_changed(self) -> None:
        """Read the calendar at the next call of ``refresh``; any thread may call."""
        self._due_at = None

    def refresh(self, now: datetime) -> bool:
        """Read who holds what, if it is time; False: it was not.

        Raises:
            DatabaseError: the database is away; what was known stays.
        """
        due = self._due_at
        if due is not None and now < due:
            return False
        self._due_at = now + timedelta(seconds=REFRESH_SECONDS)
        site = SitePolicy.current()
        holdings = current_holdings(now)
        ended = recent_holdings(now, within_seconds=OVERRUN_SECONDS)
        owners = Owners(jobs=dict(self._job_owners()), logins=_logins())
        with self._lock:
            self._holdings, self._ended = holdings, ended
            self._owners = owners
            self._watcher.policy = WatchPolicy(
                idle_util_pct=site.idle_util_pct,
                no_show_seconds=site.no_show_seconds,
                grace_seconds=site.stop_grace_seconds,
            )
        return True

    def _holding(self, gpu_pk: int, now: datetime) -> HoldingInfo | None:
        """Return whose Window runs, exactly at its edges though read before."""
        info = self._holdings.get(gpu_pk)
        return info if info is not None and info.start <= now < info.end else None

    def judge(
        self, gpu_pk: int, reading: GpuReading | None, age_seconds: float, now: datetime
    ) -> GpuState:
        """Return the word for a Gpu."""
        with self._lock:
            verdict = self._watcher.judge(
                gpu_pk,
                reading,
                age_seconds=age_seconds,
                now=now,
                facts=GpuFacts(),
                owners=self._owners,
                holding=self._holding(gpu_pk, now),
                before=self._ended.get(gpu_pk),
            )
            self._verdicts[gpu_pk] = verdict
        return verdict.state

    def holder_present(self, gpu_pk: int, reading: GpuReading, now: datetime) -> bool:
        """Say whether the holder has a process on a Gpu."""
        with self._lock:
            return holder_present(reading, self._holding(gpu_pk, now), self._owners)

    def tell(self, now: datetime) -> int:
        """Open and close Alerts to match the last verdicts; how many changed.

        Raises:
            DatabaseError: the database is away; the next call tells again.
        """
        with self._lock:
            standing = {
                (pk, finding.rule): finding
                for pk, verdict in self._verdicts.items()
                for finding in verdict.findings
            }
            blind = {
                pk
                for pk, verdict in self._verdicts.items()
                if verdict.state in (GpuState.STALE, GpuState.UNKNOWN)
            }
        changed = 0
        for (pk, rule), finding in standing.items():
            told = self._told.get((pk, rule))
            if told is None or now - told >= timedelta(seconds=TELL_SECONDS):
                changed += _open(pk, finding, now)
                self._told[pk, rule] = now
        for key in [k for k in self._told if k not in standing and k[0] not in blind]:
            changed += telemetry.close_alert(rule=key[1], gpu_id=key[0], now=now)
            del self._told[key]
        return changed


def _open(gpu_pk: int, finding: Finding, now: datetime) -> bool:
    return telemetry.open_alert(
        rule=finding.rule.value,
        gpu_id=gpu_pk,
        now=now,
        reservation_id=finding.reservation_pk,
        detail={"users": list(finding.users)} if finding.users else {},
    )


def _logins() -> dict[str, int]:
    """Return Users by Unix login, and by portal name where that is not taken."""
    rows = list(User.objects.order_by().values_list("pk", "username", "unix_user"))
    found = {login: pk for pk, login, _unix in rows}
    found |= {unix: pk for pk, _login, unix in rows if unix}
    return found
