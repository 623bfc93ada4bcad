"""A signed-in page that tolerates no console error, a fake minute of frames, axe."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import redis
from django.test import Client
from playwright.sync_api import ConsoleMessage, Page

from telemetry.inventory.queries import load_cluster
from telemetry.live import broadcast
from telemetry.models import Gpu
from telemetry.protocol.frame import Frame, FrameRow, encode
from telemetry.protocol.gpu_state import GpuState
from tests.factories import make_gpus, make_node, make_pool
from tests.pages import violations

GIB = 2**30


class LiveCluster:
    """Two nodes whose frames come twice a second, as ingest would send them."""

    beat_seconds = 0.5

    def __init__(self, client: redis.Redis) -> None:
        self.client = client
        big = make_node("node-a", driver_version="570.86.15")
        small = make_node("node-b", driver_version="570.86.15")
        make_gpus(4, big)
        make_gpus(
            2,
            small,
            pool=make_pool("RTX 3090 24GB", weight=3),
            memory_total_bytes=24 * GIB,
        )
        self.gpus = list(Gpu.objects.order_by("node__name", "index"))
        self.rows = [
            FrameRow(
                state=GpuState.FREE,
                util_pct=0,
                memory_used_mib=400,
                temperature_celsius=35,
                power_watts=60,
                sm_clock_mhz=210,
                age_seconds=0.4,
            )
            for _ in self.gpus
        ]

    def start(self) -> None:
        """Let frames come until ``stop``."""
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._pulse, daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """Send no more frames, as if ingest had died."""
        self.over.set()
        self.thread.join()

    def _pulse(self) -> None:
        while not self.over.wait(self.beat_seconds):
            self.send_frame()

    def set(self, index: int, **changes: object) -> None:
        """Change one row of the coming frames."""
        self.rows[index] = replace(self.rows[index], **changes)

    def send_roster(self) -> None:
        """Publish the names of the rows."""
        cluster = load_cluster()
        self.roster_id = cluster.roster_id
        with self.client.pipeline() as pipe:
            broadcast.publish_roster(pipe, cluster.roster)
            pipe.execute()

    def send_frame(self, at: float | None = None) -> None:
        """Publish one frame of the present rows."""
        frame = Frame(self.roster_id, at or time.time(), tuple(self.rows))
        with self.client.pipeline() as pipe:
            broadcast.publish_frame(pipe, encode(frame))
            pipe.execute()


@pytest.fixture
def live_cluster(live_asgi: str, redis_client: redis.Redis) -> Iterator[LiveCluster]:
    """The nodes with their roster and live frames."""
    live_cluster = LiveCluster(redis_client)
    live_cluster.send_roster()
    live_cluster.send_frame()
    live_cluster.start()
    yield live_cluster
    live_cluster.stop()


@pytest.fixture
def console(page: Page) -> Iterator[list[str]]:
    """Errors of the page. Any that is left at the end fails the test."""
    errors: list[str] = []

    def listen(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            errors.append(f"{message.type}: {message.text}")

    page.on("console", listen)
    page.on("pageerror", lambda error: errors.append(f"uncaught: {error}"))
    yield errors
    assert errors == []


@pytest.fixture
def sign_in(page: Page, live_asgi: str, console: list[str]) -> Callable[..., None]:
    """Put a user's session into the browser."""

    def enter(user: object, theme: str = "") -> None:
        client = Client()
        client.force_login(user)  # type: ignore[arg-type]
        cookies = [{"name": "sessionid", "value": client.cookies["sessionid"].value}]
        if theme:
            cookies.append({"name": "theme", "value": theme})
        page.context.add_cookies([{**c, "url": live_asgi} for c in cookies])  # type: ignore[list-item]

    return enter


@pytest.fixture
def axe(page: Page) -> Callable[[], None]:
    """Fail with axe-core's findings on the page as it is."""

    def check() -> None:
        assert violations(page) == []

    return check
