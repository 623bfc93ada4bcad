"""Measure streams beside plain calls, over the same node, in the same run.

    python -m bench.tunnel.streams_and_calls [--seconds 40]

This process is the portal: uvicorn with the whole site, and the code that a page's
request would run. The broker, the node (its streams and its calls, as in its worker)
and a job's program that returns what it gets each run in a separate process.

First the same bytes go to the program and back: by a call as for a served model, over a
stream that is opened for it, over a stream that is open, and over one whose frames go
through the broker, as if another web process held the node's websocket. The ways take
turns. Then small calls and small exchanges over an open stream are measured while other
streams carry bulk data in both directions, with readers that rest after each piece or
that read without a rest. The memory of such streams is bounded by their windows.

CPU time of this process includes the code that measures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import socket
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.access import p95
from bench.rig.access_site import READY_SECONDS
from bench.rig.cluster import cpu_seconds, process, setup, valkey

SIZES = {"1 KiB": 1024, "256 KiB": 256 * 1024, "8 MiB": 8 * 2**20}
"""The last is the largest body and the largest answer of a call."""
SMALL = 1024
JOB = 7
FOLDER = "7-1"
WITHIN_SECONDS = 30.0
MOST = 64
REST_SECONDS = 0.25
"""Of a slow reader, after each piece. A window is 512 KiB, so it reads 2 MB/s."""
ROUNDS = 2
CALL, OPENED, OPEN, BROKER = (
    "call",
    "stream, opened for it",
    "stream, open",
    "stream, open, through the broker",
)
BULK = {
    "no other stream": (0, 0.0),
    "1 slow reader": (1, REST_SECONDS),
    "8 slow readers": (8, REST_SECONDS),
    "1 fast reader": (1, 0.0),
    "8 fast readers": (8, 0.0),
}
Exchange = Callable[[bytes], Awaitable[bytes]]
Way = Callable[[], AbstractAsyncContextManager[Exchange]]


@dataclass
class Cell:
    """The measurements of one way and one size."""

    taken: list[float] = field(default_factory=list)
    """Seconds of each exchange."""
    cpu: Counter[str] = field(default_factory=Counter)
    """CPU seconds of each process."""

    def add(self, other: Cell) -> None:
        """Add a later turn."""
        self.taken += other.taken
        self.cpu.update(other.cpu)

    @property
    def median_ms(self) -> float:
        """Median of an exchange."""
        return statistics.median(self.taken) * 1e3

    @property
    def p95_ms(self) -> float:
        """95th percentile of an exchange."""
        return p95(self.taken) * 1e3

    def rate(self, size: int) -> float:
        """Return MB/s, both directions together."""
        return 2 * size * len(self.taken) / 1e6 / sum(self.taken)

    def cpu_ms(self, name: str, size: int) -> float:
        """Return CPU milliseconds of a process for each MB."""
        return self.cpu[name] * 1e3 / (2 * size * len(self.taken) / 1e6)


def cpu_now(pids: dict[str, int]) -> Counter[str]:
    """Return the CPU seconds of the processes until now. This one is the portal."""
    used = Counter({name: cpu_seconds(pid) for name, pid in pids.items()})
    used["portal"] = time.process_time()
    return used


@asynccontextmanager
async def calls() -> AsyncIterator[Exchange]:
    """Yield the exchange by a call, as the door of served models does it."""
    from placement.protocol.serving_frames import Call
    from placement.serving.call_access import CallTarget
    from placement.serving.call_broker import call_broker

    target = CallTarget("node1", JOB, 1, 1, "")
    broker = call_broker()

    async def exchange(data: bytes) -> bytes:
        async with broker.place(JOB, 1, len(data), WITHIN_SECONDS) as name:
            call = Call(
                call=name,
                job=JOB,
                attempt=1,
                method="POST",
                path="/v2/models/echo/infer",
                headers={"content-type": "application/octet-stream"},
                within_seconds=WITHIN_SECONDS,
                expires_at=0.0,
                body=data,
            )
            answer = await broker.ask(target, call)
            if answer.status != 200:
                raise ConnectionError(f"{answer.status}: {answer.body!r:.300}")
            return answer.body

    yield exchange


@asynccontextmanager
async def open_stream() -> AsyncIterator[Exchange]:
    """Yield the exchange over one stream, which stays open."""
    from placement.access.stream_broker import stream_broker
    from tests.placement.access.stream_nodes import target_at

    async with stream_broker().open(
        target_at(), "workspace", most=MOST, options={"folder": FOLDER}
    ) as stream:

        async def exchange(data: bytes) -> bytes:
            await stream.write(b"echo %d\n" % len(data))
            await stream.write(data)
            parts, size = [], 0
            while size < len(data) and (piece := await stream.read()):
                parts.append(piece.data)
                size += len(piece.data)
            return b"".join(parts)

        yield exchange


@asynccontextmanager
async def opened_for_each() -> AsyncIterator[Exchange]:
    """Yield the exchange over a stream that is opened for it."""

    async def exchange(data: bytes) -> bytes:
        async with open_stream() as once:
            return await once(data)

    yield exchange


@asynccontextmanager
async def bulk(count: int, rest_seconds: float) -> AsyncIterator[Counter[str]]:
    """Keep streams busy in both directions. Yield their bytes so far."""
    from placement.access.stream_broker import stream_broker
    from placement.protocol.stream_refusal import StreamRefused
    from tests.placement.access.stream_nodes import target_at

    moved: Counter[str] = Counter()

    async def send(stream) -> None:
        while True:
            await stream.write(bytes(64 * 1024))
            moved["bytes"] += 64 * 1024

    async def read(stream) -> None:
        while piece := await stream.read():
            moved["bytes"] += len(piece.data)
            await asyncio.sleep(rest_seconds)

    async with contextlib.AsyncExitStack() as stack:
        work = []
        for _ in range(count):
            stream = await stack.enter_async_context(
                stream_broker().open(
                    target_at(), "workspace", most=MOST, options={"folder": FOLDER}
                )
            )
            await stream.write(b"bulk %f\n" % rest_seconds)
            work += [asyncio.create_task(one(stream)) for one in (send, read)]
        yield moved
        if any(task.done() for task in work):
            raise SystemExit("a stream with bulk data has ended")
        for task in work:
            task.cancel()
        for result in await asyncio.gather(*work, return_exceptions=True):
            assert isinstance(result, asyncio.CancelledError | StreamRefused)


async def measured(way: Way, size: int, seconds: float, pids: dict[str, int]) -> Cell:
    """Return the times of as many exchanges as fit into the seconds, at least one."""
    data, cell = os.urandom(size), Cell()
    async with way() as exchange:
        if (answer := await exchange(data)) != data:
            raise SystemExit(f"{size} bytes were sent, other {len(answer)} came back")
        before, end = cpu_now(pids), time.perf_counter() + seconds
        while not cell.taken or time.perf_counter() < end:
            start = time.perf_counter()
            answer = await exchange(data)
            cell.taken.append(time.perf_counter() - start)
            if len(answer) != size:
                raise SystemExit(f"{len(answer)} bytes of {size} came back")
        cell.cpu = cpu_now(pids)
        cell.cpu.subtract(before)
    return cell


def in_other_loop(way: Way, size: int, seconds: float, pids: dict[str, int]) -> Cell:
    """Measure in a loop that does not hold the node's websocket. Its frames go through
    the broker.
    """
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measured(way, size, seconds, pids))


async def print_ways(seconds: float, pids: dict[str, int]) -> None:
    """Measure and print the ways side by side."""
    ways: dict[str, Way] = {
        CALL: calls,
        OPENED: opened_for_each,
        OPEN: open_stream,
        BROKER: open_stream,
    }
    each = seconds / (ROUNDS * len(SIZES) * len(ways))
    cells: defaultdict[tuple[str, str], Cell] = defaultdict(Cell)
    for _ in range(ROUNDS):
        for title, size in SIZES.items():
            for name, way in ways.items():
                if name == BROKER:
                    cell = await asyncio.to_thread(in_other_loop, way, size, each, pids)
                else:
                    cell = await measured(way, size, each, pids)
                cells[title, name].add(cell)
    print(
        "\n| bytes each way | way | median ms | p95 ms | of the call | MB/s "
        "| CPU ms for each MB: portal | node | broker |"
    )
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for (title, name), cell in cells.items():
        size, ratio = SIZES[title], cell.median_ms / cells[title, CALL].median_ms
        spent = (f"{cell.cpu_ms(one, size):.1f}" for one in ("portal", *pids))
        print(
            f"| {title} | {name} | {cell.median_ms:.2f} | {cell.p95_ms:.2f} "
            f"| {ratio:.2f} | {cell.rate(size):.1f} | {' | '.join(spent)} |",
            flush=True,
        )


async def print_beside_bulk(seconds: float, pids: dict[str, int]) -> None:
    """Measure and print small exchanges beside streams with bulk data."""
    probes: dict[str, Way] = {CALL: calls, OPEN: open_stream}
    each = seconds / (ROUNDS * len(BULK) * len(probes))
    cells: defaultdict[tuple[str, str], Cell] = defaultdict(Cell)
    rates: defaultdict[str, list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        for title, (count, rest_seconds) in BULK.items():
            async with bulk(count, rest_seconds) as moved:
                await asyncio.sleep(each / 4)
                before, start = moved["bytes"], time.perf_counter()
                for name, way in probes.items():
                    cells[title, name].add(await measured(way, SMALL, each, pids))
                passed = time.perf_counter() - start
                rates[title].append((moved["bytes"] - before) / 1e6 / passed)
    print("\n| beside | bulk MB/s | 1 KiB by | median ms | p95 ms | of alone |")
    print("| --- | ---: | --- | ---: | ---: | ---: |")
    for (title, name), cell in cells.items():
        ratio = cell.median_ms / cells[next(iter(BULK)), name].median_ms
        print(
            f"| {title} | {statistics.mean(rates[title]):.0f} | {name} "
            f"| {cell.median_ms:.2f} | {cell.p95_ms:.2f} | {ratio:.2f} |",
            flush=True,
        )


@contextmanager
def job_folder(var: Path) -> Iterator[None]:
    """Run the program of a job in a folder of the node's jobs."""
    from placement.agent.job_folder import JobFolder
    from tests.placement.nodes import make_order

    path = var / "node" / "node" / "jobs" / FOLDER
    path.mkdir(parents=True)
    folder = JobFolder.at(path)
    folder.write("order", {"payload": make_order(job=JOB, attempt=1).payload()})
    folder.write("status", {"event": "started"})
    with process("-m", "bench.tunnel.echo_job", str(path)):
        yield


async def until_answered() -> None:
    """Wait until the node answers both ways."""
    from placement.protocol.call_refusal import CallRefused
    from placement.protocol.stream_refusal import StreamRefused

    end = time.monotonic() + READY_SECONDS
    for way in (calls, open_stream):
        while True:
            with contextlib.suppress(CallRefused, StreamRefused, ConnectionError):
                async with way() as exchange:
                    if await exchange(b"ready?") == b"ready?":
                        break
            if time.monotonic() > end:
                raise SystemExit(f"the node did not answer: {way.__name__}")
            await asyncio.sleep(0.2)


async def measure(var: Path, token: str, seconds: float) -> None:
    """Run the portal and the node, measure, and print the figures."""
    import redis.asyncio
    import uvicorn
    from django.conf import settings

    from gpuportal.asgi import application
    from gpuportal.http.message_limit import MOST_SERVER_BYTES
    from placement.protocol.node_http import UNSENT_BYTES

    config = uvicorn.Config(
        application,
        lifespan="off",
        log_level="error",
        ws_max_size=MOST_SERVER_BYTES,
        ws_per_message_deflate=False,
    )
    server = uvicorn.Server(config)
    listener = socket.create_server(("127.0.0.1", 0))
    option = (socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
    listener.setsockopt(*option, UNSENT_BYTES)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.05)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    arguments = (str(var), url, token, "0")
    with process("-m", "bench.rig.tunnel_node", *arguments) as node:
        async with redis.asyncio.Redis.from_url(settings.REDIS_URL) as client:
            info = await client.info("server")
        pids = {"node": node.pid, "broker": int(info["process_id"])}
        await until_answered()
        print(f"load {os.getloadavg()[0]:.1f} before, {os.cpu_count()} cores")
        await print_ways(seconds * 0.6, pids)
        await print_beside_bulk(seconds * 0.4, pids)
        print(f"\nload {os.getloadavg()[0]:.1f} after")
        server.should_exit = True
        await serving


def main() -> None:
    """Read the options, and measure with a temporary folder and a private broker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=40.0, help="of measuring")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as var:
        setup(var)
        import uvloop
        from django.core.management import call_command

        from telemetry import paths
        from tests.factories import make_node

        call_command("migrate", verbosity=0, interactive=False)
        row = make_node("node1")
        token = row.new_token()
        row.save()
        with (
            valkey(paths.embedded_socket()),
            job_folder(Path(var)),
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            runner.run(measure(Path(var), token, args.seconds))


if __name__ == "__main__":
    main()
