"""State that all board sockets of one web process share, computed once.

500 open pages must not ask the database 500 times for the holders, nor encode the same
message 500 times. The shared state of an event loop asks once and keeps one text per
audience: without names, with names, the operator's, and one for each viewer whose own
bookings are in it.
"""

import asyncio
import contextlib
import json
import logging
from dataclasses import dataclass, field
from datetime import UTC, datetime
from weakref import WeakKeyDictionary

from channels.db import database_sync_to_async
from django.db import Error as DatabaseError

from gpuportal.board.board_snapshot import (
    BoardSnapshot,
    JobOwner,
    Viewer,
    audience_key,
    detail_message,
    holders_message,
    jobs_in,
    load_board,
    load_job_owners,
    runners_in,
)
from telemetry.live.broadcast import Detail
from telemetry.live.hub import CALENDAR_CHANGED, Mailbox, hub

HOLDERS = "board.holders"
"""Not a channel of the broker, but a signal of the shared state in a Mailbox."""
LONGEST_SECONDS = 30.0
"""Holders are read again at least this often, even without a signal."""
SHORTEST_SECONDS = 0.2
"""Within this time a burst of changes is read once."""
MOST_OWNERS = 20_000

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _NodeDetails:
    """One node's newest details, and the texts made of them."""

    raw: bytes
    detail: Detail
    runners: set[int | str]
    texts: dict[tuple[bool, bool, int | None], str] = field(default_factory=dict)


class BoardState:
    """Holders and details for the sockets of one event loop (`board_state()`)."""

    def __init__(self) -> None:
        self.snapshot: BoardSnapshot | None = None
        self._boxes: set[Mailbox] = set()
        self._task: asyncio.Task[None] | None = None
        self._holders: dict[tuple[bool, int | None, str | None], str] = {}
        self._owners: dict[int, JobOwner | None] = {}
        self._details: dict[str, _NodeDetails] = {}
        self._lock = asyncio.Lock()

    def join(self, box: Mailbox) -> None:
        """Begin to signal changes of the holders to a Mailbox."""
        self._boxes.add(box)
        if self.snapshot is not None:
            box.put(HOLDERS, b"")
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._watch())

    def leave(self, box: Mailbox) -> None:
        """Stop the signals."""
        self._boxes.discard(box)
        if not self._boxes:
            self.snapshot = None
            self._details.clear()
            if self._task is not None:
                self._task.cancel()
                self._task = None

    def holders(self, viewer: Viewer) -> str | None:
        """Return the `holders` message for a viewer; None before the first read."""
        if self.snapshot is None:
            return None
        key = audience_key(self.snapshot, viewer)
        if key not in self._holders:
            self._holders[key] = holders_message(self.snapshot, viewer)
        return self._holders[key]

    async def detail(self, channel: str, raw: bytes, viewer: Viewer) -> str:
        """Return the `detail` message for a viewer."""
        async with self._lock:
            kept = self._details.get(channel)
            if kept is None or kept.raw is not raw:
                detail: Detail = json.loads(raw)
                await self._know_owners(jobs_in(detail))
                kept = _NodeDetails(raw, detail, runners_in(detail, self._owners))
                self._details[channel] = kept
        runs = not kept.runners.isdisjoint(
            (viewer.user_pk, viewer.unix_user or viewer.username)
        )
        key = (viewer.named, viewer.operator, viewer.user_pk if runs else None)
        if key not in kept.texts:
            kept.texts[key] = detail_message(kept.detail, self._owners, viewer)
        return kept.texts[key]

    async def _know_owners(self, job_ids: set[int]) -> None:
        unknown = job_ids - self._owners.keys()
        if not unknown:
            return
        if len(self._owners) + len(unknown) > MOST_OWNERS:
            self._owners.clear()
            unknown = job_ids
        try:
            found = await database_sync_to_async(load_job_owners)(unknown)
        except DatabaseError as error:
            logger.warning("owners of Jobs are not known now: %s", error)
            return
        for job_id in unknown:
            self._owners[job_id] = found.get(job_id)

    async def _watch(self) -> None:
        """Read the holders on a signal, when a booking begins or ends, and at regular
        intervals."""
        box = Mailbox()
        hub().subscribe(box, [CALENDAR_CHANGED])
        try:
            while True:
                try:
                    await self._reload()
                    wait_seconds = self._seconds_to_change()
                except DatabaseError as error:
                    logger.warning("holders are late: %s", error)
                    wait_seconds = 2.0
                # Not wait_for: before Python 3.12 it may swallow a cancellation.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_seconds):
                        await box.get()
                await asyncio.sleep(SHORTEST_SECONDS)
        finally:
            hub().unsubscribe(box)

    async def _reload(self) -> None:
        snapshot = await database_sync_to_async(load_board)(datetime.now(UTC))
        before, self.snapshot = self.snapshot, snapshot
        if (
            before is not None
            and before.holdings == snapshot.holdings
            and before.slurm == snapshot.slurm
        ):
            return
        self._holders.clear()
        for box in self._boxes:
            box.put(HOLDERS, b"")

    def _seconds_to_change(self) -> float:
        at = self.snapshot.changes_at if self.snapshot else None
        if at is None:
            return LONGEST_SECONDS
        left_seconds = (at - datetime.now(UTC)).total_seconds()
        return min(max(left_seconds, 0.0), LONGEST_SECONDS)


_desks: WeakKeyDictionary[asyncio.AbstractEventLoop, BoardState] = WeakKeyDictionary()


def board_state() -> BoardState:
    """Return the shared state of the running event loop."""
    return _desks.setdefault(asyncio.get_running_loop(), BoardState())
