"""Walk 1: sampling child -> stream -> ingest -> frame -> hub -> browser.

Every process is the real one: the sampler with simulated Gpus, `manage.py
ingest`, uvicorn with the whole site. Only the browser is a websocket client.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import websockets
from django.db import connection
from django.utils import timezone

from telemetry.ingest.intake import MINUTES_DONE
from telemetry.ingest.lease import LEASE_KEY
from telemetry.inventory.enrollment import enroll_node
from telemetry.inventory.roster import record_roster
from telemetry.live.broadcast import FRAME_SECONDS
from telemetry.models import Gpu, SampleMinute
from telemetry.protocol import frame
from telemetry.protocol.gpu_state import GpuState
from telemetry.protocol.hardware import NodeInfo
from tests.factories import make_membership, make_reservation, make_user
from tests.gpuportal.board.test_consumers import sign_in
from tests.telemetry.messages import (
    GIB,
    gpu_info,
    reading,
    roster,
    sample,
    send,
)

# Other tests run on both databases what ingest and the pages read and write.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]
ROOT = Path(__file__).resolve().parent.parent.parent
GPUS = 4
PATIENCE_SECONDS = 60.0
"""Only a test that fails waits so long."""


def database_url() -> str:
    """The test database's address, for processes of their own."""
    name = connection.settings_dict["NAME"]
    if connection.vendor == "sqlite":
        return f"sqlite:///{name}"
    parts = connection.settings_dict
    auth = f"{parts['USER']}:{parts['PASSWORD']}".rstrip(":")
    return f"postgres://{auth}@{parts['HOST']}:{parts['PORT']}/{name}"


class Site:
    """The processes of this test, by name; each ends with the test."""

    def __init__(self, redis_url: str, state_dir: Path) -> None:
        self.redis_url, self.state_dir = redis_url, state_dir
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def start(self, name: str) -> None:
        """Start one of: sampler, ingest, web (also ingest2, ...)."""
        commands = {
            "sampler": [
                *("-m", "telemetry.agent.sampler", "--node", "node-a"),
                *("--backend", "simulated", "--state-dir", str(self.state_dir)),
                *("--redis", self.redis_url),
            ],
            "ingest": ["manage.py", "ingest"],
            "web": [
                *("-m", "uvicorn", "gpuportal.asgi:application", "--lifespan", "off"),
                *("--fd", str(self.listener.fileno()), "--log-level", "warning"),
            ],
        }
        env = {
            **os.environ,
            "DATABASE_URL": database_url(),
            "REDIS_URL": self.redis_url,
            "DJANGO_SETTINGS_MODULE": "gpuportal.settings",
        }
        self.processes[name] = subprocess.Popen(
            [sys.executable, *commands[name.rstrip("2")]],
            cwd=ROOT,
            env=env,
            stdout=subprocess.DEVNULL,
            pass_fds=[self.listener.fileno()] if name == "web" else (),
        )

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """End one and wait for it."""
        process = self.processes.pop(name)
        process.send_signal(number)
        process.wait(PATIENCE_SECONDS)

    def end_all(self) -> None:
        """End all of them."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(PATIENCE_SECONDS)
        self.listener.close()


@pytest.fixture
def site(valkey_url: str, tmp_path: Path, transactional_db) -> Iterator[Site]:
    actors = [
        {
            "gpu": "GPU-0",
            "from": time.time() - 60,
            "until": None,
            "user": "alice",
            "uid": 1001,
            "command": "python /home/alice/train.py --key s3cr3t",
            "memory_bytes": 9 * GIB,
            "util_pct": 80,
            "wobble_pct": 0,
            "pid": 4242,
        },
    ]
    gpus = [gpu_info(f"GPU-{n}", n) for n in range(GPUS)]
    state = {"gpus": gpus, "fast_links": [], "actors": actors}
    (tmp_path / "node-a.json").write_text(json.dumps(state))
    enroll_node(name="node-a", simulated=True, now=timezone.now())
    made = Site(valkey_url, tmp_path)
    try:
        for name in ("web", "ingest", "sampler"):
            made.start(name)
        yield made
    finally:
        made.end_all()


class Page:
    """The view of a browser: the roster that it knows, and the newest frame."""

    def __init__(self, link: websockets.ClientConnection) -> None:
        self.link = link
        self.told: dict[str, dict] = {}
        self.frame: frame.Frame | None = None

    async def read(self) -> str:
        """Take one message; its type."""
        message = await self.link.recv()
        if isinstance(message, bytes):
            self.frame = frame.decode(message)
            return "frame"
        told = json.loads(message)
        self.told[told["type"]] = told
        return told["type"]

    async def until(self, condition, seconds: float) -> float:
        """Read until a condition holds. Return the time that it took."""
        start = time.monotonic()
        async with asyncio.timeout(seconds):
            while not condition():
                await self.read()
        return time.monotonic() - start

    def rows(self) -> dict[str, frame.FrameRow]:
        """Return rows by UUID, if frame and roster belong together."""
        roster = self.told.get("roster")
        if not roster or not self.frame:
            return {}
        if roster["roster_id"] != self.frame.roster_id:
            return {}
        return {
            gpu["uuid"]: row
            for gpu, row in zip(roster["gpus"], self.frame.rows, strict=True)
        }

    def states(self) -> set[GpuState]:
        """The states of all rows."""
        return {row.state for row in self.rows().values()}


@contextlib.asynccontextmanager
async def open_page(site: Site, key: str):
    """A page of the board. It waits in the socket's queue until the web is up."""
    url = f"ws://127.0.0.1:{site.port}/ws/board/"
    async with websockets.connect(
        url,
        origin=f"http://127.0.0.1:{site.port}",
        additional_headers={"cookie": f"sessionid={key}"},
        ping_interval=None,
        open_timeout=PATIENCE_SECONDS,
    ) as link:
        yield Page(link)


@pytest.fixture
def alice_key(transactional_db) -> str:
    alice = make_user("alice")
    make_membership(alice, "vision")
    return sign_in(alice)


def heard(page: Page):
    return lambda: (
        len(page.rows()) == GPUS
        and not page.states()
        & {
            GpuState.STALE,
            GpuState.UNKNOWN,
        }
    )


def book(username: str, uuid: str) -> None:
    from reservations.models import User

    user = User.objects.get(username=username)
    make_reservation(user, [Gpu.objects.get(uuid=uuid)])


def minutes_of(uuid: str) -> list[int]:
    return list(SampleMinute.objects.filter(gpu__uuid=uuid).values_list("n", flat=True))


@pytest.mark.timeout(400)
async def test_a_page_follows_samples_bookings_and_deaths(
    site: Site, alice_key: str, redis_client, subtests: pytest.Subtests
):
    """The stories share the processes, because their start takes most of the CPU."""
    async with open_page(site, alice_key) as page:
        await page.until(heard(page), PATIENCE_SECONDS)
        with subtests.test("samples are on the page within a second"):
            await samples_are_on_the_page_within_a_second(page)
        with subtests.test("a sample reaches the browser and the calendar joins it"):
            await a_sample_arrives_and_the_calendar_joins_it(page, redis_client)
        with subtests.test("a stopped sampler is stale within 5 s and comes back"):
            await a_stopped_sampler_is_stale_and_comes_back(page, site)
        with subtests.test("an idle socket stays open for more than 6 s"):
            await an_idle_socket_stays_open(page, site)


async def samples_are_on_the_page_within_a_second(page: Page) -> None:
    ages: list[float] = []
    # Nine of ten in a row, at some time within a minute of a busy machine.
    while len(ages) < 60 and (len(ages) < 10 or sorted(ages[-10:])[-2] >= 1.0):
        if await page.read() == "frame":
            assert page.frame is not None
            oldest = max(row.age_seconds or 0 for row in page.frame.rows)
            ages.append(time.time() - page.frame.server_at + oldest)
    assert sorted(ages[-10:])[-2] < 1.0, ages


async def a_sample_arrives_and_the_calendar_joins_it(page: Page, redis_client) -> None:
    busy, free = page.rows()["GPU-0"], page.rows()["GPU-1"]
    assert abs((busy.util_pct or 0) - 80) <= 5
    assert (busy.memory_used_mib or 0) >= 9 * 1024
    assert free.state is GpuState.FREE
    # Nobody booked GPU-0: after several samples her process is a squatter's.
    squats = lambda: page.rows()["GPU-0"].state is GpuState.SQUATTER  # noqa: E731
    await page.until(squats, PATIENCE_SECONDS)
    # She books it: the same process is now the holder's.
    await asyncio.to_thread(book, "alice", "GPU-0")
    redis_client.publish("reservations.changed", "1")
    works = lambda: page.rows()["GPU-0"].state is GpuState.BUSY  # noqa: E731
    await page.until(works, PATIENCE_SECONDS)
    await page.link.send('{"watch": "*"}')
    await page.until(lambda: "detail" in page.told, PATIENCE_SECONDS)
    (process,) = page.told["detail"]["gpus"]["GPU-0"]["processes"]
    assert process["mine"] is True
    assert process["command"].endswith("--key s3cr3t")
    holder = page.told["holders"]["holders"]
    assert [entry["user"] for entry in holder.values()] == ["Alice"]


async def a_stopped_sampler_is_stale_and_comes_back(page: Page, site: Site) -> None:
    took: list[float] = []
    # A busy machine may delay one of them.
    while len(took) < 3 and (not took or took[-1] >= 5):
        await page.until(heard(page), PATIENCE_SECONDS)
        site.end("sampler")
        stale = page.until(lambda: page.states() == {GpuState.STALE}, PATIENCE_SECONDS)
        took.append(await stale)
        assert page.rows()["GPU-0"].util_pct is not None  # last seen
        site.start("sampler")
    await page.until(heard(page), PATIENCE_SECONDS)
    assert min(took) < 5


async def an_idle_socket_stays_open(page: Page, site: Site) -> None:
    site.end("ingest")
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(7):
            while True:
                await page.read()
    assert page.link.state is websockets.State.OPEN
    site.start("ingest")
    before = page.frame
    await page.until(lambda: page.frame is not before, PATIENCE_SECONDS)
    await page.until(heard(page), PATIENCE_SECONDS)


async def test_two_ingests_and_a_killed_one_count_every_sample_once(
    site: Site, alice_key: str, redis_client
):
    """The past is written into the stream directly, so that the test need not wait a
    minute.
    """
    for name in ("ingest", "sampler"):
        site.end(name)
    info = NodeInfo.from_message(json.dumps(roster(gpu_info("GPU-0"))), node="node-a")
    await asyncio.to_thread(record_roster, info=info, now=timezone.now())
    redis_client.delete("raw.node-a")
    first = int(time.time()) // 60 * 60 - 600
    redis_client.set(MINUTES_DONE, first - 60)
    with redis_client.pipeline() as pipe:
        for second in range(420):
            message = sample(reading("GPU-0"), seq=second)
            send(pipe, "raw.node-a", message, at=first + second)
        pipe.execute()
    async with open_page(site, alice_key) as page:
        site.start("ingest")
        site.start("ingest2")
        await page.until(lambda: page.frame is not None, PATIENCE_SECONDS)
        site.end("ingest", signal.SIGKILL)
        before = page.frame
        # The other takes over when the lease has expired, at its next look.
        assert redis_client.pttl(LEASE_KEY) / 1000 + FRAME_SECONDS <= 4
        await page.until(lambda: page.frame is not before, PATIENCE_SECONDS)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(counts := await asyncio.to_thread(minutes_of, "GPU-0")) < 7:
            assert time.monotonic() < deadline, counts
            await asyncio.sleep(0.2)
        assert counts == [60] * 7
