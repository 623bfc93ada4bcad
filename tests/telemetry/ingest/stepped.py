"""An ingest that a test drives by hand, and its fixtures."""

import time
from collections.abc import Callable

import redis

from telemetry.ingest import Ingest
from telemetry.live import broadcast
from telemetry.protocol import frame


class Stepped:
    """An ingest whose rounds a test takes one by one, in one thread.

    Args:
        ahead: seconds by which the broker's clock is ahead of the real one.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        ahead: Callable[[], float] = lambda: 0.0,
        **parts: object,
    ) -> None:
        self.client = client
        self.ingest = Ingest(client, **parts)
        intake = self.ingest.intake
        intake._clock = lambda: time.time() + ahead()
        intake.set_clock = lambda: None
        self.round()

    def round(self) -> frame.Frame | None:
        """Write, read, tick; the frame that is published now."""
        self.ingest.writer._loaded = float("-inf")
        self.ingest.writer.work(may_write=self.ingest.lease.held)
        self.ingest.read(0.01)
        while self.ingest.intake.behind:
            self.ingest.read(0.01)
        self.ingest.tick()
        self.ingest.writer.work(may_write=self.ingest.lease.held)
        return self.frame

    @property
    def frame(self) -> frame.Frame | None:
        data = self.client.get(broadcast.FRAME_LATEST)
        return frame.decode(data) if data else None
