"""All database work of ingest, in a separate thread.

The frame must go out each second whether the database answers or not. So the loop
leaves the data to store in bounded containers here: the newest roster of each node,
the newest step of each rule and Gpu, and the minutes that are over. Data that could not
be stored stay and are tried again. Minutes beyond `MOST_MINUTES` are dropped, because
they are still in the raw stream and `MINUTES_DONE` does not move.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from django.db import Error as DatabaseError
from django.db import close_old_connections
from django.utils import timezone
from msgspec.structs import replace
from redis import Redis, RedisError

from telemetry.alerts.service import close_alert, open_alert
from telemetry.history.minute_store import record_minutes
from telemetry.ingest.complaints import Complaints
from telemetry.ingest.intake import MINUTES_DONE, MOST_XIDS_KEPT
from telemetry.inventory.enrollment import mark_seen, set_lost
from telemetry.inventory.queries import ClusterSnapshot, load_cluster
from telemetry.inventory.roster import record_host, record_roster
from telemetry.inventory.xid_counts import count_xids, is_off_the_bus
from telemetry.models import Alert, Node, TelemetryPolicy
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.hardware import NodeInfo
from telemetry.protocol.reading import XidEvent
from telemetry.rules.alert_rules import LOST
from telemetry.rules.finding_rules import FindingAct, FindingStep
from telemetry.rules.rollup import MinuteTotals
from telemetry.rules.thresholds import JudgePolicy

MOST_MINUTES = 70
CYCLE_SECONDS = 1.0
RELOAD_SECONDS = 5.0
SEEN_SECONDS = 15.0
ROSTER_SECONDS = 5.0
"""Shortest time between two rosters of a node that are stored."""
ROSTER_AGAIN_SECONDS = 300.0
"""When an unchanged roster is stored again, because an operator may have changed
rows."""

logger = logging.getLogger(__name__)


class Writer:
    """Stores the loop's results, and reads the data that the loop needs."""

    def __init__(
        self,
        redis: Redis,
        *,
        complaints: Complaints,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._complaints = complaints
        self._steady = steady
        self._lock = threading.Lock()
        self._rosters: dict[str, NodeInfo] = {}
        self._hosts: dict[str, NodeInfo] = {}
        """Rosters of which only the free memory or disk is new."""
        self._applied: dict[str, tuple[NodeInfo, float]] = {}
        self._steps: dict[tuple[int | str, str], FindingStep] = {}
        self._xids: dict[int, list[XidEvent]] = {}
        self._minutes: dict[int, dict[int, MinuteTotals]] = {}
        self._seen: dict[str, datetime] = {}
        self._seen_written = self._loaded = float("-inf")
        self.cluster: ClusterSnapshot | None = None
        """The cluster from the database; None until it was read once."""
        self.policy = JudgePolicy()
        """The operator's thresholds; the defaults until they were read."""
        self._open_alerts: list[tuple[int | str, str]] = []

    # --- the loop's side: never waits ------------------------------------------

    def queue_roster(self, info: NodeInfo) -> None:
        """Keep a node's newest roster. An unchanged one is skipped."""
        with self._lock:
            applied, at = self._applied.get(info.node, (None, 0.0))
            again = self._steady() - at > ROSTER_AGAIN_SECONDS
            if again or applied is None or not _same_but_host(applied, info):
                self._rosters[info.node] = info
            elif applied.host != info.host:
                self._hosts[info.node] = info

    def queue_step(self, place: int | str, step: FindingStep) -> None:
        """Keep the newest step of a rule on a Gpu, or on a node by its name."""
        with self._lock:
            before = self._steps.get((place, step.finding.rule))
            if (
                before
                and before.act is FindingAct.OPEN
                and step.act is FindingAct.REPEAT
            ):
                # It is not stored yet, so it still has to be opened.
                step = FindingStep(FindingAct.OPEN, step.finding)
            self._steps[place, step.finding.rule] = step

    def queue_xids(self, events: Mapping[int, list[XidEvent]]) -> None:
        """Keep error events by Gpu until they are counted."""
        with self._lock:
            for gpu_id, told in events.items():
                kept = self._xids.setdefault(gpu_id, [])
                kept.extend(told[: MOST_XIDS_KEPT - len(kept)])

    def take_open_alerts(self) -> list[tuple[int | str, str]]:
        """Findings that were open when this process began: (Gpu or node, rule)."""
        taken, self._open_alerts = self._open_alerts, []
        return taken

    def queue_minute(self, minute: int, totals: dict[int, MinuteTotals]) -> None:
        """Keep a minute that is over."""
        with self._lock:
            self._minutes[minute] = totals
            for old in sorted(self._minutes)[:-MOST_MINUTES]:
                del self._minutes[old]

    def queue_seen(self, seen: dict[str, datetime]) -> None:
        """Keep when nodes were last heard."""
        with self._lock:
            self._seen.update(seen)

    def drop(self) -> None:
        """Forget data that another ingest writes. Rosters stay, because they come
        rarely and this process needs them when it leads again."""
        with self._lock:
            self._steps.clear()
            self._minutes.clear()
            self._xids.clear()
            self._hosts.clear()

    # --- the thread's side ---------------------------------------------------------

    def run(self, stop: threading.Event, may_write: Callable[[], bool]) -> None:
        """Work once a second until `stop`."""
        while not stop.wait(CYCLE_SECONDS if self.cluster else 0.2):
            close_old_connections()
            self.work(may_write=may_write())
        close_old_connections()

    def work(self, *, may_write: bool) -> None:
        """Do one round. A step that fails does not affect the others and is tried
        again."""
        if may_write:
            with self._step("rosters"):
                self._write_rosters()
            with self._step("memory and disk"):
                self._write_hosts()
            with self._step("alerts"):
                self._write_steps()
            with self._step("XIDs"):
                self._write_xids()
            with self._step("minutes"):
                self._write_minutes()
            with self._step("last seen"):
                self._write_seen()
        else:
            self.drop()
        with self._step("cluster"):
            self._reload()

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        try:
            yield
        except (DatabaseError, RedisError) as error:
            self._complaints.add(f"writing {name}", error)
        except Exception as error:
            # The thread must go on, because the other steps depend on it.
            self._complaints.add(f"writing {name}", repr(error))
            logger.exception("ingest cannot write %s", name)

    def _write_rosters(self) -> None:
        for info in self._due_rosters():
            try:
                report = record_roster(info=info, now=timezone.now())
            except CodedError as error:
                self._complaints.add(info.node, error)
            else:
                for uuid in (*report.claimed, *report.refused):
                    self._complaints.add(info.node, f"{uuid} is not taken from it")
                if report:
                    self._loaded = float("-inf")
            with self._lock:
                self._applied[info.node] = (info, self._steady())
                if self._rosters.get(info.node) == info:
                    del self._rosters[info.node]

    def _write_hosts(self) -> None:
        with self._lock:
            told, self._hosts = self._hosts, {}
        for info in told.values():
            if info.host is not None:
                record_host(node=info.node, backend=info.backend, host=info.host)

    def _due_rosters(self) -> list[NodeInfo]:
        limit = self._steady() - ROSTER_SECONDS
        with self._lock:
            for name in self._applied.keys() - set(
                self.cluster.nodes if self.cluster else self._applied
            ):
                del self._applied[name]
            return [
                info
                for name, info in self._rosters.items()
                if name not in self._applied or self._applied[name][1] <= limit
            ]

    def _write_steps(self) -> None:
        with self._lock:
            steps = dict(self._steps)
        now = timezone.now()
        for (place, rule), step in steps.items():
            self._store(place, step, now)
            with self._lock:
                if self._steps.get((place, rule)) is step:
                    del self._steps[place, rule]

    def _store(self, place: int | str, step: FindingStep, now: datetime) -> None:
        finding = step.finding
        gpu_id = place if isinstance(place, int) else None
        node_id = None
        if isinstance(place, str):
            node_id = (
                Node.objects.filter(name=place).values_list("pk", flat=True).first()
            )
            if node_id is None:
                return
        covered = finding.of_node or (
            finding.rule == LOST and gpu_id is not None and is_off_the_bus(gpu_id)
        )
        if step.act is FindingAct.CLOSE or covered:
            close_alert(rule=finding.rule, gpu_id=gpu_id, node_id=node_id, now=now)
        else:
            opens = step.act is FindingAct.OPEN and finding.trail is not None
            open_alert(
                rule=finding.rule,
                gpu_id=gpu_id,
                node_id=node_id,
                now=now,
                detail=finding.detail,
                reservation_id=finding.reservation_id,
                readings=finding.trail.facts() if opens and finding.trail else None,
            )
        if (
            finding.rule == LOST
            and step.act is not FindingAct.REPEAT
            and gpu_id is not None
        ):
            set_lost(gpu_ids=[gpu_id], lost=step.act is FindingAct.OPEN)

    def _write_xids(self) -> None:
        with self._lock:
            events, self._xids = self._xids, {}
        if not events:
            return
        try:
            count_xids(events=events, now=timezone.now())
        except DatabaseError:
            self.queue_xids(events)
            raise

    def _write_minutes(self) -> None:
        with self._lock:
            minutes = {start: self._minutes[start] for start in sorted(self._minutes)}
        for start, totals in minutes.items():
            keyed = {(gpu_id, start): total for gpu_id, total in totals.items()}
            record_minutes(totals=keyed)
            stored = int(self._redis.get(MINUTES_DONE) or 0)  # type: ignore[arg-type]
            self._redis.set(MINUTES_DONE, max(start, stored))
            with self._lock:
                if self._minutes.get(start) is totals:
                    del self._minutes[start]

    def _write_seen(self) -> None:
        if self._steady() - self._seen_written < SEEN_SECONDS:
            return
        with self._lock:
            seen, self._seen = self._seen, {}
        mark_seen(seen=seen)
        self._seen_written = self._steady()

    def _reload(self) -> None:
        if self._steady() - self._loaded < RELOAD_SECONDS:
            return
        self.policy = TelemetryPolicy.current().to_policy()
        if self.cluster is None:
            rows = Alert.objects.open().values_list("gpu_id", "node__name", "rule")
            self._open_alerts = [(gpu_id or node, rule) for gpu_id, node, rule in rows]
        self.cluster = load_cluster()
        self._loaded = self._steady()


def _same_but_host(one: NodeInfo, other: NodeInfo) -> bool:
    """Return whether two rosters differ at most in free memory and disk."""
    return replace(one, host=None) == replace(other, host=None)
