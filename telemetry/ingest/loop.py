"""The loop of ingest: read, and once a second judge and publish."""

import json
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from redis import Redis, RedisError
from redis.exceptions import OutOfMemoryError

from telemetry.ingest.bounds import Misuse, StreamBounds
from telemetry.ingest.complaints import Complaints
from telemetry.ingest.connections import Connections
from telemetry.ingest.findings import Findings
from telemetry.ingest.intake import Intake, milliseconds
from telemetry.ingest.lease import Lease
from telemetry.ingest.readings import (
    HolderPresent,
    Judge,
    detail_of,
    frame_rows,
    trouble_of,
)
from telemetry.ingest.streams import GroupReader, Handler
from telemetry.ingest.writer import Writer
from telemetry.inventory.queries import ClusterGpu
from telemetry.live.broadcast import (
    FRAME_SECONDS,
    publish_detail,
    publish_frame,
    publish_roster,
    publish_trouble,
)
from telemetry.protocol.back_off import BackOff
from telemetry.protocol.broker_keys import RAW
from telemetry.protocol.frame import Frame, FrameRow, encode
from telemetry.protocol.gpu_state import GpuState
from telemetry.protocol.sample import GpuReading
from telemetry.rules.bare_state import bare_state
from telemetry.rules.finding_rules import Finding

ROSTER_AGAIN_SECONDS = 10.0
"""How often the roster's key is written again, because a restarted broker has lost
it."""
TIDY_SECONDS = 60.0
CONNECTIONS_SECONDS = 5.0
"""Time between two counts of the connections to the broker."""
MISUSE_STANDS_SECONDS = 300.0
"""How long a node's misuse of the broker is reported after it was corrected."""
MINUTE_GRACE_SECONDS = 3.0
TICK_PHASE_SECONDS = 0.35
"""Nodes sample on the whole second. A third of a second later their samples are
here."""
BACK_OFF_SECONDS = (0.2, 0.5, 1.0, 2.0)

logger = logging.getLogger("telemetry.ingest")


def any_process_present(_gpu_id: int, reading: GpuReading, _now: datetime) -> bool:
    """Without a calendar, count any process as the holder's."""
    return bool(reading.processes)


def judge_bare(
    _gpu_id: int, reading: GpuReading | None, age_seconds: float, _now: datetime
) -> GpuState:
    """Judge without a calendar."""
    return bare_state(reading, age_seconds=age_seconds)


def no_findings(_gpu_id: int) -> Iterable[Finding]:
    """Find nothing without a calendar."""
    return ()


def seconds_to_tick(at: float) -> float:
    """Return the seconds from a Unix time to the next tick: half a second to one and a
    half, so that neither rounding nor a change of the clock makes two ticks of one.

    >>> seconds_to_tick(10.35), round(seconds_to_tick(10.34), 2)
    (1.0, 1.01)
    """
    left_seconds = FRAME_SECONDS - (at - TICK_PHASE_SECONDS) % FRAME_SECONDS
    return left_seconds if left_seconds >= 0.5 else left_seconds + FRAME_SECONDS


class Ingest:
    """Connects the parts. `run` blocks. `read` and `tick` are its steps."""

    def __init__(
        self,
        redis: Redis,
        *,
        judge: Judge = judge_bare,
        findings: Callable[[int], Iterable[Finding]] = no_findings,
        holder_present: HolderPresent = any_process_present,
        on_fact: Handler | None = None,
        on_log: Handler | None = None,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._steady = steady
        self._judge = judge
        self.complaints = Complaints(logger)
        self.lease = Lease(redis)
        self.writer = Writer(redis, complaints=self.complaints, steady=steady)
        self.intake = Intake(
            redis,
            complaints=self.complaints,
            holder_present=holder_present,
            on_misuse=self._note_misuse,
            steady=steady,
        )
        self._bounds = StreamBounds(redis)
        self._connections = Connections(redis, complaints=self.complaints)
        self._misuses: dict[str, tuple[float, Misuse]] = {}
        """By node, the newest misuse of the broker and when it was corrected."""
        self._findings = Findings(self.writer, findings)
        self._judged: set[int] = set()
        """Gpus whose state the judge decides in this tick: not in maintenance, not
        missing."""
        self.readers = [
            GroupReader(
                redis,
                prefix=prefix,
                handler=handler,
                complaints=self.complaints,
                on_misuse=self._note_misuse,
            )
            for prefix, handler in (("facts.", on_fact), ("log.", on_log))
            if handler is not None
        ]
        self._roster_id: int | None = None
        self._roster_at = self._tidied = self._counted = float("-inf")
        self.latenesses: deque[float] = deque(maxlen=120)
        """How many seconds the last frames were late."""

    def run(self, stop: threading.Event) -> None:
        """Work until `stop`. The loop recovers from every failure of broker or
        database."""
        threads = [
            threading.Thread(
                target=self.writer.run, args=(stop, lambda: self.lease.held)
            ),
            *(
                threading.Thread(
                    target=reader.run,
                    args=(stop, lambda: self.lease.held, self._nodes),
                )
                for reader in self.readers
            ),
        ]
        for thread in threads:
            thread.start()
        try:
            self._loop(stop)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
            self._give_lease_back()

    def _loop(self, stop: threading.Event) -> None:
        next_tick = time.monotonic() + seconds_to_tick(time.time())
        back_off = BackOff(BACK_OFF_SECONDS)
        while not stop.is_set():
            wait = next_tick - time.monotonic()
            try:
                if wait > 0:
                    self.read(min(wait, 0.2))
                else:
                    self.latenesses.append(-wait)
                    # Missed ticks are skipped.
                    next_tick = time.monotonic() + seconds_to_tick(time.time())
                    self.tick()
                back_off.succeeded()
            except RedisError as error:
                self.complaints.add("broker", error)
                self._roster_id = None
                if isinstance(error, OutOfMemoryError):
                    self._enforce_bounds()
                stop.wait(back_off.failed())

    def _give_lease_back(self) -> None:
        try:
            self.lease.release()
        except RedisError as error:
            self.complaints.add("broker", error)

    def _nodes(self) -> tuple[str, ...]:
        return self.intake.cluster.nodes

    def read(self, block_seconds: float) -> int:
        """Read new messages. Return how many."""
        self._update_cluster()
        entries = self.intake.read(block_seconds)
        for inbox in self.intake.inboxes.values():
            if inbox.info is not None:
                self.writer.queue_roster(inbox.info)
                inbox.info = None
        return entries

    def tick(self) -> None:
        """Judge every Gpu, publish, and give the writer the data to store."""
        now, steady = datetime.now(UTC), self._steady()
        leads = self.lease.acquire()
        self._update_cluster()
        self._judged.clear()
        rows = list(
            frame_rows(
                self.intake.cluster,
                self.intake.inboxes,
                self._state,
                now=now,
                steady=steady,
            )
        )
        self._findings.watch(
            rows,
            self.intake.inboxes,
            judged=self._judged,
            misuses=self._recent_misuses(steady),
            now=now,
            steady=steady,
        )
        if leads and self.writer.cluster is not None:
            self._publish(rows, now, steady)
        self._leave_to_writer(now)
        if leads and steady - self._counted > CONNECTIONS_SECONDS:
            self._counted = steady
            for misuse in self._connections.enforce(self._nodes()):
                self._note_misuse(misuse)
        if steady - self._tidied > TIDY_SECONDS:
            self._tidied = steady
            self._tidy()
        elif self._bounds.grown():
            self._enforce_bounds()

    def _update_cluster(self) -> None:
        """Take over the cluster if the writer has read it again."""
        cluster = self.writer.cluster
        if cluster is None or cluster is self.intake.cluster:
            return
        self.intake.update_cluster(cluster)
        self._findings.update_cluster(cluster, steady=self._steady())

    def _state(
        self, gpu_id: int, reading: GpuReading | None, age_seconds: float, now: datetime
    ) -> GpuState:
        """Judge one Gpu. A Gpu that cannot be judged does not delay the frame of the
        others."""
        self._judged.add(gpu_id)
        try:
            return self._judge(gpu_id, reading, age_seconds, now)
        except Exception as error:
            self.complaints.add("judge", f"Gpu {gpu_id}: {error!r}")
            return GpuState.UNKNOWN

    def _publish(
        self, rows: list[tuple[ClusterGpu, FrameRow]], now: datetime, steady: float
    ) -> None:
        """Send roster, frame and details at once. A reader between a new roster and its
        frame would find that they do not fit, and would show no Gpu."""
        cluster = self.intake.cluster
        with self._redis.pipeline(transaction=True) as pipe:
            again = steady - self._roster_at > ROSTER_AGAIN_SECONDS
            if cluster.roster and (cluster.roster_id != self._roster_id or again):
                publish_roster(pipe, cluster.roster)
                self._roster_id, self._roster_at = cluster.roster_id, steady
            frame = Frame(
                roster_id=cluster.roster_id,
                server_at=now.timestamp(),
                rows=tuple(row for _gpu, row in rows),
            )
            publish_frame(pipe, encode(frame))
            for name, inbox in self.intake.inboxes.items():
                news = inbox.trouble is not inbox.told
                if news and inbox.trouble is not None:
                    inbox.told = inbox.trouble
                    publish_trouble(pipe, name, _json(trouble_of(inbox.trouble)))
                if inbox.sample is not inbox.published or news:
                    inbox.published = inbox.sample
                    publish_detail(pipe, name, _json(detail_of(inbox)))
            pipe.execute()

    def _leave_to_writer(self, now: datetime) -> None:
        stored = self.intake.stored_until()
        if not self.intake.behind:
            until = now.timestamp() - MINUTE_GRACE_SECONDS
            for minute, totals in self.intake.minutes.over(until).items():
                if minute > stored:
                    self.writer.queue_minute(minute, totals)
        self.writer.queue_seen(self.intake.heard_at(now))
        self.writer.queue_xids(self.intake.take_xids())

    def _tidy(self) -> None:
        self.intake.set_clock()
        self.intake.trim()
        for reader in self.readers:
            reader.trim(self._nodes())
        self._enforce_bounds()
        self._log_unknown_nodes()

    def _log_unknown_nodes(self) -> None:
        """Log which machines send samples but are not enrolled. Nobody reads those
        samples."""
        known = {RAW + node for node in self._nodes()}
        lately_ms = (time.time() - 2 * TIDY_SECONDS) * 1000
        for key in self._redis.scan_iter(match=RAW + "*", count=1000, _type="stream"):
            name = key.decode(errors="replace")
            if name in known:
                continue
            newest: Any = self._redis.xrevrange(key, count=1)
            if newest and milliseconds(newest[0][0]) > lately_ms:
                node = name.removeprefix(RAW)
                self.complaints.add(
                    "nodes that are not enrolled",
                    f"{node} sends samples; manage.py enroll_node {node} takes it in",
                )

    def _enforce_bounds(self) -> None:
        """Keep every node's keys within its share of the broker's memory."""
        try:
            for misuse in self._bounds.enforce(self._nodes()):
                self._note_misuse(misuse)
        except RedisError as error:
            self.complaints.add("broker", error)

    def _note_misuse(self, misuse: Misuse) -> None:
        """Remember a node's misuse of the broker. May be called from any thread."""
        self._misuses[misuse.node] = (self._steady(), misuse)
        self.complaints.add(misuse.node, misuse.what)

    def _recent_misuses(self, steady: float) -> dict[str, str]:
        """Return recent misuses by node, for their alerts."""
        return {
            node: misuse.what
            for node, (at, misuse) in list(self._misuses.items())
            if steady - at < MISUSE_STANDS_SECONDS
        }


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
