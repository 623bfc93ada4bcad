"""Measure the cost of one more open page: CPU per delivered frame, in two ways.

    python bench/fanout.py [--clients 500] [--seconds 15] [--nodes 125] [--gpus 8]

Two runs on one machine, one after the other, each with a separate broker, one uvicorn
process and N websocket clients in another process:

* hub:  125 nodes send samples, `Ingest` makes a binary frame a second, and the site's
  own BoardConsumer sends it (telemetry/live/hub.py);
* json: the usual way: the same facts as one JSON text, `group_send` through the channel
  layer, each consumer encodes and sends.

The figure is a ratio, so that it is comparable between machines. Delivered is the share
of the frames that every page should have got. The delay is end to end, from the arrival
of a node's sample to the page. CPU is user + system of the web process, from /proc,
over the measured seconds, less the same process's CPU without a client.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.rig.cluster import (
    cpu_seconds,
    make_cluster,
    process,
    sample_of,
    setup,
    valkey,
)

WARM_UP_SECONDS = 4
PAGES_PER_PERSON = 20


def role_feed(options: argparse.Namespace) -> None:
    """125 nodes in one process: a sample each, each second."""
    import redis
    from django.conf import settings

    client = redis.Redis.from_url(settings.REDIS_URL)
    for seq in range(10**9):
        started = time.monotonic()
        with client.pipeline(transaction=False) as pipe:
            for number in range(options.nodes):
                data = json.dumps(sample_of(number, options.gpus, seq))
                stream = f"raw.node-{number:03}"
                pipe.xadd(stream, {"m": data}, maxlen=120, approximate=True)
            pipe.execute()
        time.sleep(max(0.0, started + 1 - time.monotonic()))


def role_ingest(_options: argparse.Namespace) -> None:
    """Run the real loop, without a calendar."""
    import threading

    import redis
    from django.conf import settings

    from telemetry.ingest import Ingest

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    Ingest(redis.Redis.from_url(settings.REDIS_URL)).run(stop)


def role_json_feed(options: argparse.Namespace) -> None:
    """Send in the usual way: one group, one dictionary a second."""
    from asgiref.sync import async_to_sync
    from channels.layers import get_channel_layer

    layer = get_channel_layer()

    async def send() -> None:
        for seq in range(10**9):
            started = time.monotonic()
            gpus = [
                {"node": number, **gpu, "processes": len(gpu["processes"])}
                for number in range(options.nodes)
                for gpu in sample_of(number, options.gpus, seq)["gpus"]
            ]
            frame = {"at": time.time(), "gpus": gpus}
            await layer.group_send("bench", {"type": "bench.frame", "frame": frame})
            await asyncio.sleep(max(0.0, started + 1 - time.monotonic()))

    async_to_sync(send)()


def json_application() -> Any:
    """Return the ASGI application of the usual way (for uvicorn --factory)."""
    setup(os.environ["GPUPORTAL_VAR"])
    from channels.generic.websocket import AsyncWebsocketConsumer

    class JsonConsumer(AsyncWebsocketConsumer):
        async def connect(self) -> None:
            await self.channel_layer.group_add("bench", self.channel_name)
            await self.accept()

        async def bench_frame(self, event: dict[str, Any]) -> None:
            await self.send(text_data=json.dumps(event["frame"]))

    return JsonConsumer.as_asgi()


# --- the browsers --------------------------------------------------------------------


async def one_client(
    options: argparse.Namespace, tally: dict[str, Any], session: str
) -> None:
    """Run an open page that counts frames and their ages."""
    import websockets

    async with websockets.connect(
        f"ws://127.0.0.1:{options.port}/ws/board/",
        origin=f"http://127.0.0.1:{options.port}",
        additional_headers={"cookie": f"sessionid={session}"},
        compression="deflate" if options.compress else None,
        max_size=None,
        ping_interval=None,
        open_timeout=None,
    ) as link:
        tally["open"] += 1
        async for message in link:
            if isinstance(message, bytes):
                tally["frames"] += 1
                tally["ages"].append(time.time() - _sampled_at(message))
            elif message.startswith('{"at"'):
                tally["frames"] += 1
                at = float(message[6 : message.index(",")])
                tally["ages"].append(time.time() - at)


def _sampled_at(frame: bytes) -> float:
    """Return when the first Gpu's newest sample reached the server."""
    from telemetry.protocol.frame import AGE_STEP_SECONDS, HEADER, ROW

    age = ROW.unpack_from(frame, HEADER.size)[-1] * AGE_STEP_SECONDS
    return float(HEADER.unpack_from(frame)[3]) - age


def role_clients(options: argparse.Namespace) -> None:
    """Run all the browsers. Print one JSON line for every `go` on stdin."""

    async def run() -> None:
        tally: dict[str, Any] = {"open": 0, "frames": 0, "ages": []}
        tasks, keys = [], options.session.split(",")
        for number in range(options.clients):
            tasks.append(
                asyncio.create_task(
                    one_client(options, tally, keys[number % len(keys)])
                )
            )
            if number % 20 == 19:
                await asyncio.sleep(0.1)
        while tally["open"] < options.clients:
            await asyncio.sleep(0.1)
            for task in tasks:
                if task.done():
                    task.result()
        print("open", flush=True)
        await asyncio.sleep(WARM_UP_SECONDS)
        tally["frames"], tally["ages"] = 0, []
        print("begin", flush=True)
        await asyncio.sleep(options.seconds)
        frames, ages = tally["frames"], sorted(tally["ages"])
        p50, p95 = (
            ages[int(len(ages) * part) - 1] if ages else None for part in (0.5, 0.95)
        )
        print(json.dumps({"frames": frames, "p50": p50, "p95": p95}), flush=True)
        await asyncio.sleep(3600)

    asyncio.run(run())


# --- the measurement ------------------------------------------------------------------


def measure(options: argparse.Namespace, kind: str, session: str) -> dict[str, float]:
    """Return one run's CPU of the web process per delivered frame, and its delay."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = ["--nodes", str(options.nodes), "--gpus", str(options.gpus)]
    web = [*("-m", "uvicorn", "--lifespan", "off", "--log-level", "error")]
    web += ["--port", str(port), "--ws-max-size", "1048576"]
    web += ["--ws-per-message-deflate", "true" if options.compress else "false"]
    if kind == "hub":
        roles = ["feed", "ingest"]
        web.append("gpuportal.asgi:application")
    else:
        roles = ["json_feed"]
        web += ["--factory", "bench.fanout:json_application"]
    clients = ["--port", str(port), "--session", session]
    clients += ["--clients", str(options.clients), "--seconds", str(options.seconds)]
    clients += ["--compress"] if options.compress else []
    with ExitStack() as stack:
        server = stack.enter_context(process(*web))
        children = {
            role: stack.enter_context(process(__file__, "--role", role, *shared))
            for role in roles
        }
        made_by = children[roles[-1]].pid
        wait_for_port(port)
        time.sleep(WARM_UP_SECONDS)
        idle = cpu_over(server.pid, 5.0)
        pages = stack.enter_context(process(__file__, "--role", "clients", *clients))
        assert pages.stdout is not None
        for word in ("open", "begin"):
            line = pages.stdout.readline().strip()
            if line != word:
                raise SystemExit(f"the clients said {line!r} and not {word!r}")
        before, made = cpu_seconds(server.pid), cpu_seconds(made_by)
        told = json.loads(pages.stdout.readline())
        used = cpu_seconds(server.pid) - before
        made = cpu_seconds(made_by) - made
    net = max(0.0, used - idle * options.seconds)
    return {
        "frames": told["frames"],
        "cpu_us": net / max(1, told["frames"]) * 1e6,
        "core_pct": used / options.seconds * 100,
        "maker_pct": made / options.seconds * 100,
        "delivered_pct": 100 * told["frames"] / (options.clients * options.seconds),
        "p50_ms": (told["p50"] or 0) * 1000,
        "p95_ms": (told["p95"] or 0) * 1000,
    }


def cpu_over(pid: int, seconds: float) -> float:
    """Return CPU seconds per second of a process."""
    before = cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / seconds


def wait_for_port(port: int, seconds: float = 30) -> None:
    """Wait until the web process listens."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def main() -> None:
    """Measure both ways and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--nodes", type=int, default=125)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--compress", action="store_true", help="permessage-deflate")
    parser.add_argument("--role", default="", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--session", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "clients":
        role_clients(options)
        return
    if options.role:
        setup(os.environ["GPUPORTAL_VAR"])
        globals()[f"role_{options.role}"](options)
        return
    with tempfile.TemporaryDirectory(prefix="fanout-") as var:
        setup(var)
        from telemetry import paths

        found = {}
        people = options.clients // PAGES_PER_PERSON + 1
        session = make_cluster(options.nodes, options.gpus, people)
        for kind in ("hub", "json"):
            with valkey(paths.embedded_socket()):
                found[kind] = measure(options, kind, session)
    report(options, found)


def report(options: argparse.Namespace, found: dict[str, dict[str, float]]) -> None:
    """Print the measurements."""
    gpus = options.nodes * options.gpus
    print(
        f"{gpus} Gpus on {options.nodes} nodes at 1 Hz, {options.clients} pages, "
        f"{options.seconds:.0f} s, {os.cpu_count()} cores, "
        f"load {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}"
    )
    print(
        f"{'':8}{'frames':>8}{'delivered':>11}{'CPU/frame':>12}{'web process':>13}"
        f"{'p50 delay':>11}{'p95 delay':>11}{'its maker':>11}"
    )
    for kind, row in found.items():
        print(
            f"{kind:8}{row['frames']:>8.0f}{row['delivered_pct']:>9.1f} %"
            f"{row['cpu_us']:>9.0f} us{row['core_pct']:>11.1f} %"
            f"{row['p50_ms']:>8.0f} ms{row['p95_ms']:>8.0f} ms"
            f"{row['maker_pct']:>9.1f} %"
        )
    ratio = found["json"]["cpu_us"] / max(found["hub"]["cpu_us"], 1e-9)
    print("its maker: ingest for the hub, whoever calls group_send for json")
    print(f"json costs {ratio:.0f} x what the hub costs")


if __name__ == "__main__":
    main()
