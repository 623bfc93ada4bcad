"""Read the raw streams: bytes of untrusted machines in, readings out."""

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from redis import Redis, ResponseError

from telemetry.ingest.bounds import Misuse
from telemetry.ingest.complaints import Complaints
from telemetry.ingest.readings import (
    HolderPresent,
    LatestReading,
    NodeInbox,
    OpenMinutes,
    own_gpus,
)
from telemetry.inventory.queries import EMPTY_CLUSTER, ClusterSnapshot
from telemetry.live.broadcast import TROUBLE
from telemetry.protocol.broker_keys import RAW
from telemetry.protocol.errors import MessageRefused
from telemetry.protocol.hardware import NodeInfo
from telemetry.protocol.message import MESSAGE_MOST_BYTES
from telemetry.protocol.reading import XidEvent
from telemetry.protocol.sample import NodeSample, read_message
from telemetry.protocol.trouble import KeptTrouble, NodeTrouble
from telemetry.rules.energy import EnergyMeters
from telemetry.rules.rollup import MINUTE_SECONDS, minute_start, of_reading

RAW_MAXLEN = 4000
"""Entries kept of a node's raw stream: slightly more than one hour."""
MINUTES_DONE = "telemetry.minutes.done"
"""Key that holds the last stored minute, in Unix seconds."""
READ_COUNT = 100
FUTURE_MILLISECONDS = 60_000
"""A node chose the id of an entry that is further ahead of the server's clock. No entry
with an id of the server could follow it, so the stream is started again."""
FLOOD_MESSAGES = 20
"""After so many excess messages in a row the node's stream is skipped."""
PASSED_OVER_SECONDS = 2.0
"""How long a flooded stream is skipped. Then its newest entries are read."""
NEWEST_COUNT = 3
WRONG_TYPE_PAUSE_SECONDS = 0.02
LAST_NUMBER = 2**64 - 1
"""Largest number of an entry within its millisecond."""
MOST_XIDS_KEPT = 256
"""Error events of one Gpu that may wait for the database. A storm is one finding."""
LOOK_BACK_SECONDS = 65 * 60
FIRST_LOOK_BACK_SECONDS = 2 * MINUTE_SECONDS


class Intake:
    """Follows the raw stream of every enrolled node and keeps the newest entries."""

    def __init__(
        self,
        redis: Redis,
        *,
        complaints: Complaints,
        holder_present: HolderPresent,
        on_misuse: Callable[[Misuse], object] = lambda _misuse: None,
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._redis = redis
        self._complaints = complaints
        self._on_misuse = on_misuse
        self._holder_present = holder_present
        self._clock = clock
        self._steady = steady
        self._offset_seconds = 0.0
        """The server's clock minus ours."""
        self.cluster: ClusterSnapshot = EMPTY_CLUSTER
        self.inboxes: dict[str, NodeInbox] = {}
        self.minutes = OpenMinutes()
        self._meters = EnergyMeters()
        self.samples = 0
        """Samples taken since the start."""
        self._xids: dict[int, list[XidEvent]] = {}

    @property
    def behind(self) -> bool:
        """Whether the last read left existing entries. A node that floods its stream
        does not count."""
        return any(inbox.behind for inbox in self.inboxes.values())

    def update_cluster(self, cluster: ClusterSnapshot) -> None:
        """Read only the streams of these nodes from now on."""
        self.cluster = cluster
        self._meters.keep_only({gpu.pk for gpu in cluster.gpus})
        for name in self.inboxes.keys() - set(cluster.nodes):
            del self.inboxes[name]
        new = [name for name in cluster.nodes if name not in self.inboxes]
        if not new:
            return
        self.set_clock()
        start = self._first_unstored()
        for name in new:
            inbox = NodeInbox(
                name,
                last_id=f"{start * 1000 - 1}-{LAST_NUMBER}",
                read_until_ms=start * 1000,
            )
            self._read_last_trouble(inbox)
            try:
                self._take_newest_sample(inbox)
            except ResponseError as error:
                self._drop_stream(inbox, error)
            self.inboxes[name] = inbox

    def set_clock(self) -> None:
        """Compare the server's clock, by which entries are dated, with ours."""
        seconds, microseconds = self._redis.time()  # type: ignore[misc]
        self._offset_seconds = seconds + microseconds / 1e6 - self._clock()

    def trim(self) -> None:
        """Trim the streams of nodes by number and age of entries.

        Entries are kept a minute longer than the retention of raw samples, so that all
        of that time can be read again.
        """
        kept_seconds = self.cluster.keep_raw_seconds + MINUTE_SECONDS
        oldest_ms = int((self._clock() + self._offset_seconds - kept_seconds) * 1000)
        with self._redis.pipeline(transaction=False) as pipe:
            for name in self.inboxes:
                pipe.xtrim(RAW + name, maxlen=RAW_MAXLEN, approximate=True)
                pipe.xtrim(RAW + name, minid=max(0, oldest_ms), approximate=True)
            # A key that is no stream affects only its own node.
            pipe.execute(raise_on_error=False)

    def read(self, block_seconds: float) -> int:
        """Read new entries, waiting so long for the first one. Return how many."""
        if not self.inboxes:
            time.sleep(block_seconds)
            return 0
        steady = self._steady()
        asked_ms = self._server_ms()
        read = []
        for inbox in self.inboxes.values():
            if inbox.passed_over_until is not None:
                if steady < inbox.passed_over_until:
                    continue
                self._read_newest(inbox)
            read.append(inbox)
        if not read:
            time.sleep(min(block_seconds, PASSED_OVER_SECONDS / 4))
            return 0
        # BLOCK 0 would wait forever.
        block = None if self.behind else max(1, int(block_seconds * 1000))
        entries = 0
        for inbox, messages in self._answers(read, block).items():
            self._process_entries(inbox, messages)
            entries += len(messages)
        for inbox in read:
            if not inbox.behind:
                inbox.read_until_ms = max(inbox.read_until_ms, asked_ms)
        return entries

    def _answers(
        self, read: list[NodeInbox], block: int | None
    ) -> dict[NodeInbox, list[Any]]:
        """Return the new entries of these streams by inbox. A bad stream affects no
        other."""
        streams: dict[Any, Any] = {RAW + inbox.name: inbox.last_id for inbox in read}
        for inbox in read:
            inbox.behind = False
        try:
            answer: Any = self._redis.xread(streams, count=READ_COUNT, block=block)
        except ResponseError:
            answer = self._read_each(read)
        found = {}
        for key, messages in answer or []:
            inbox = self.inboxes[key.decode().removeprefix(RAW)]
            inbox.behind = len(messages) >= READ_COUNT
            found[inbox] = messages
        return found

    def _read_each(self, read: list[NodeInbox]) -> list[Any]:
        """Read each node's stream separately, after a read of all was refused."""
        with self._redis.pipeline(transaction=False) as pipe:
            for inbox in read:
                pipe.xread({RAW + inbox.name: inbox.last_id}, count=READ_COUNT)
            answers = pipe.execute(raise_on_error=False)
        found: list[Any] = []
        for inbox, answer in zip(read, answers, strict=True):
            if isinstance(answer, ResponseError):
                self._drop_stream(inbox, answer)
            elif isinstance(answer, Exception):
                raise answer
            else:
                found += answer or []
        if not found:
            # A node that makes such keys in a loop must not keep this process busy.
            time.sleep(WRONG_TYPE_PAUSE_SECONDS)
        return found

    def _drop_stream(self, inbox: NodeInbox, why: object) -> None:
        """Start a node's stream again, because the key under its name cannot be
        read."""
        self._redis.unlink(RAW + inbox.name)
        inbox.last_id = "0-0"
        inbox.behind = False
        self._on_misuse(Misuse(inbox.name, f"{RAW}{inbox.name} was deleted: {why}"))

    def _skip_stream(self, inbox: NodeInbox) -> None:
        """Do not read a flooded stream for a while."""
        inbox.passed_over_until = self._steady() + PASSED_OVER_SECONDS
        inbox.behind = False
        self._on_misuse(
            Misuse(
                inbox.name, f"{RAW}{inbox.name} gets far more than a sample a second"
            )
        )

    def _read_newest(self, inbox: NodeInbox) -> None:
        """Continue at the end of a stream that was skipped."""
        inbox.passed_over_until, inbox.refused = None, 0
        key = RAW + inbox.name
        try:
            newest: Any = self._redis.xrevrange(key, count=NEWEST_COUNT)
        except ResponseError as error:
            self._drop_stream(inbox, error)
            return
        self._process_entries(inbox, reversed(newest or []))

    def _process_entries(self, inbox: NodeInbox, messages: Iterable[Any]) -> None:
        """Process entries in order until they become a flood."""
        for entry_id, fields in messages:
            inbox.last_id = entry_id.decode()
            self._process_entry(inbox, entry_id, fields.get(b"m"))
            if milliseconds(entry_id) > self._server_ms() + FUTURE_MILLISECONDS:
                self._drop_stream(inbox, "it had an entry of the future")
                return
            if inbox.refused >= FLOOD_MESSAGES:
                self._skip_stream(inbox)
                return

    def stored_until(self) -> int:
        """Return the start of the last stored minute (Unix seconds). Forget minutes up
        to it."""
        stored = int(self._redis.get(MINUTES_DONE) or 0)  # type: ignore[arg-type]
        self.minutes.forget_until(stored)
        return stored

    def heard_at(self, now: datetime) -> dict[str, datetime]:
        """Return when each node was last heard, by the server's clock."""
        steady = self._steady()
        return {
            name: now - timedelta(seconds=max(0.0, steady - inbox.arrived))
            for name, inbox in self.inboxes.items()
            if inbox.arrived is not None
        }

    def take_xids(self) -> dict[int, list[XidEvent]]:
        """Return the error events by Gpu since the last call."""
        taken, self._xids = self._xids, {}
        return taken

    def _first_unstored(self) -> int:
        """Return the Unix seconds (server's clock) from which to read the streams."""
        server_now = self._clock() + self._offset_seconds
        stored = int(self._redis.get(MINUTES_DONE) or 0)  # type: ignore[arg-type]
        if not 0 < stored <= server_now:
            return minute_start(server_now - FIRST_LOOK_BACK_SECONDS)
        earliest = minute_start(server_now - LOOK_BACK_SECONDS)
        return max(earliest, stored + MINUTE_SECONDS)

    def _read_last_trouble(self, inbox: NodeInbox) -> None:
        """Read the node's last trouble, which may be older than its stream."""
        kept = self._redis.get(TROUBLE + inbox.name)
        if kept is None:
            return
        try:
            inbox.trouble = KeptTrouble.read(
                kept,  # type: ignore[arg-type]
                node=inbox.name,
            )
        except MessageRefused as error:
            self._complaints.add(inbox.name, f"kept trouble is unreadable: {error}")

    def _take_newest_sample(self, inbox: NodeInbox) -> None:
        """Take a node's newest sample first, before its past is read again."""
        newest = self._redis.xrevrange(RAW + inbox.name, count=NEWEST_COUNT)
        for entry_id, fields in reversed(newest or []):  # type: ignore[arg-type]
            message = self._parse(inbox, fields.get(b"m"))
            at_ms = min(milliseconds(entry_id), self._server_ms())
            if isinstance(message, NodeSample):
                self._keep_newest(inbox, message, at_ms)
            elif isinstance(message, NodeTrouble):
                self._keep_trouble(inbox, message, at_ms)

    def _process_entry(
        self, inbox: NodeInbox, entry_id: bytes, payload: bytes | None
    ) -> None:
        """Process one entry.

        Its id is the server's clock, unless the node chose one. So only an id between
        the last read of the stream and now is accepted, because the entry arrived in
        that time.
        """
        at_ms = max(milliseconds(entry_id), inbox.read_until_ms)
        at_ms = min(at_ms, self._server_ms())
        if len(payload or b"") > MESSAGE_MOST_BYTES:
            self._redis.xdel(RAW + inbox.name, entry_id)
        if not inbox.admits(at_ms):
            self._complaints.add(inbox.name, "more messages than a node has to send")
            return
        message = self._parse(inbox, payload)
        if isinstance(message, NodeInfo):
            inbox.info = message
        elif isinstance(message, NodeSample):
            self._keep_newest(inbox, message, at_ms)
            self._count(inbox, message, at_ms)
            self.samples += 1
        elif isinstance(message, NodeTrouble):
            self._keep_trouble(inbox, message, at_ms)

    def _parse(
        self, inbox: NodeInbox, payload: bytes | None
    ) -> NodeInfo | NodeSample | NodeTrouble | None:
        try:
            message = read_message(payload or b"", node=inbox.name)
        except MessageRefused as error:
            self._complaints.add(inbox.name, f"message refused: {error}")
            return None
        if not isinstance(message, NodeSample):
            return message
        bound = self.cluster.bound.get(inbox.name, {})
        own = own_gpus(message, bound)
        if len(own.gpus) != len(message.gpus):
            self._report_foreign(inbox, message)
        return own

    def _report_foreign(self, inbox: NodeInbox, sample: NodeSample) -> None:
        """Complain about Gpus of a sample that belong to other nodes. New Gpus are
        accepted."""
        for gpu in sample.gpus:
            owner = self.cluster.owner_of(gpu.uuid)
            if owner not in (None, inbox.name):
                self._complaints.add(inbox.name, f"speaks for {gpu.uuid} of {owner}")

    def _keep_newest(self, inbox: NodeInbox, sample: NodeSample, at_ms: int) -> None:
        if at_ms < inbox.newest_ms:
            return
        inbox.newest_ms = at_ms
        inbox.sample = sample
        inbox.arrived = arrived = self._steady_at(at_ms)
        inbox.skew_seconds = sample.at - at_ms / 1000
        for gpu in sample.gpus:
            inbox.latest[gpu.uuid] = LatestReading(gpu, arrived)

    def _keep_trouble(self, inbox: NodeInbox, trouble: NodeTrouble, at_ms: int) -> None:
        if at_ms >= inbox.trouble_ms:
            inbox.trouble, inbox.trouble_ms = trouble, at_ms
            inbox.trouble_at = self._steady_at(at_ms)

    def _steady_at(self, at_ms: int) -> float:
        """Convert the server's clock to seconds of the steady clock."""
        return self._steady() - max(0, self._server_ms() - at_ms) / 1000

    def _server_ms(self) -> int:
        """Return milliseconds of the server's clock."""
        return int((self._clock() + self._offset_seconds) * 1000)

    def _count(self, inbox: NodeInbox, sample: NodeSample, at_ms: int) -> None:
        """Add a sample to its minute of the server's clock."""
        at = at_ms / 1000
        now = datetime.fromtimestamp(at, UTC)
        bound = self.cluster.bound[inbox.name]
        for gpu in sample.gpus:
            pk = bound[gpu.uuid].pk
            present = self._holder_present(pk, gpu, now)
            joules = self._meters.joules_since_last(pk, at, gpu)
            total = of_reading(gpu, holder_present=present, energy_joules=joules)
            self.minutes.add(pk, at, total)
            if gpu.xids:
                kept = self._xids.setdefault(pk, [])
                kept.extend(gpu.xids[: MOST_XIDS_KEPT - len(kept)])


def milliseconds(entry_id: bytes) -> int:
    """Return the milliseconds of a stream entry's id (`<ms>-<number>`): the server's
    clock, unless the node chose another number."""
    return int(entry_id.partition(b"-")[0])
