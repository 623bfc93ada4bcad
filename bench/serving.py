"""Measure serving under deadlines: open-loop load below and beyond one server's
capacity.

    python -m bench.serving [--seconds 2] [--rounds 3] [--rows 1 8] [--deadline-ms 100]
        [--hidden 32768]

The server of a Job of kind ``serve`` (HTTP over a Unix socket, scheduler, ONNX Runtime
on one thread) runs in a separate process, with a made-up network of two layers. First
its capacity is measured: as many requests as it takes, without deadlines. Then requests
come at times of a Poisson process, at 50 to 150 % of that, each with a deadline,
regardless of the earlier ones: once with admission and once without (first come, first
served). Printed are the part of all requests that was answered inside the deadline,
counted from when the request was due, and the goodput: such answers per second.

The node's tunnel and the portal are not included. Load and server share the machine,
and other programs on it make runs longer. So the same is repeated in virtual time,
where a run takes the time that the scheduler measured, give or take a tenth, and one in
a hundred three times as much.
"""

import argparse
import asyncio
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from bench.rig.serving_client import Client, answers_per_second
from bench.rig.serving_server import NAME, ROOM_BYTES
from placement.agent.serving.deadline_scheduler import Scheduler
from placement.agent.serving.queue_simulation import ScheduledModel
from placement.protocol.serving_times import Timing
from tests.placement.serving.networks import mlp_bytes
from tests.placement.serving.virtual import open_loop, uneven

WIDTH = 1024
HIDDEN = 32768
LOADS = (50, 75, 90, 100, 110, 125, 150)
VIRTUAL_SECONDS = (0.010, 0.004)
"""Seconds of a run of one row, and of each further one."""
VIRTUAL_LENGTH = 30.0
AT_ONCE = 64
READY_SECONDS = 60.0


def request_body() -> tuple[bytes, int]:
    """Return a request of one row in the binary form, and the size of its JSON."""
    tensor = np.ones((1, WIDTH), dtype="<f4").tobytes()
    said = {"name": "x", "datatype": "FP32", "shape": [1, WIDTH]}
    said["parameters"] = {"binary_data_size": len(tensor)}
    text = json.dumps({"inputs": [said]}).encode()
    return text + tensor, len(text)


@contextlib.asynccontextmanager
async def serving(path: Path, rows: int, *, admits: bool) -> AsyncIterator[Client]:
    """Yield a client of a running server with the model loaded."""
    body, json_bytes = request_body()
    with tempfile.TemporaryDirectory() as folder:
        socket = Path(folder) / "serve"
        kind = "admits" if admits else "first-come"
        program = (sys.executable, "-m", "bench.rig.serving_server")
        arguments = [*program, str(socket), str(path), str(rows), kind]
        server = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
        client = Client(socket, NAME, body, json_bytes)
        try:
            until = time.monotonic() + READY_SECONDS
            while not await client.ready():
                assert server.poll() is None and time.monotonic() < until
                await asyncio.sleep(0.05)
            yield client
            client.close()
        finally:
            server.terminate()
            server.wait()


async def capacity(path: Path, rows: int, seconds: float) -> float:
    """Return answers per second under constant load."""
    async with serving(path, rows, admits=False) as client:
        return await answers_per_second(client, seconds, AT_ONCE)


async def load(
    path: Path,
    rows: int,
    *,
    per_second: float,
    seconds: float,
    deadline_ms: float,
    admits: bool,
    seed: int,
) -> Counter[str]:
    """Return the outcomes of the requests of one open-loop load."""
    lots, fates = random.Random(seed), Counter[str]()
    tasks: set[asyncio.Task[None]] = set()

    async def ask_once(client: Client, due: float) -> None:
        # The deadline counts from when the request was due, not from when a busy
        # generator sent it.
        left_ms = deadline_ms - (time.perf_counter() - due) * 1000
        fate = "late" if left_ms <= 0 else await client.infer(left_ms)
        if fate == "answered":
            in_time = time.perf_counter() - due <= deadline_ms / 1000
            fate = "in time" if in_time else "late"
        fates[fate] += 1

    async with serving(path, rows, admits=admits) as client:
        begun = due = time.perf_counter()
        while due < begun + seconds:
            due += lots.expovariate(per_second)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            task = asyncio.create_task(ask_once(client, due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        # Requests that still wait at the end wait for one more deadline, and are late
        # after it.
        await asyncio.wait(tasks, timeout=deadline_ms / 1000) if tasks else None
        fates["late"] += len(tasks)
        for task in list(tasks):
            task.cancel()
    return fates


def row(name: str, fates: Counter[str], seconds: float) -> str:
    """Return one line of the table."""
    total = sum(fates.values())
    parts = [
        f"{100 * fates[what] / total:.1f} %"
        for what in ("in time", "refused", "full", "dropped", "late")
    ]
    goodput = f"{fates['in time'] / seconds:.0f}"
    return f"| {name} | {total / seconds:.0f} | {goodput} | {' | '.join(parts)} |"


async def measured(arguments: argparse.Namespace, path: Path, rows: int) -> float:
    """Print the table for one batch size. Return goodput at 150 % over that at 100
    %.
    """
    fates: dict[tuple[bool, int], Counter[str]] = defaultdict(Counter)
    most: list[float] = []
    for turn in range(arguments.rounds):
        # Each round uses the present capacity, because others use the machine too.
        most.append(await capacity(path, rows, arguments.seconds))
        for percent in LOADS:
            for admits in (True, False):
                fates[admits, percent] += await load(
                    path,
                    rows,
                    per_second=most[-1] * percent / 100,
                    seconds=arguments.seconds,
                    deadline_ms=arguments.deadline_ms,
                    admits=admits,
                    seed=arguments.seed + turn,
                )
    told = ", ".join(f"{one:.0f}" for one in most)
    print(f"\nBatches of up to {rows}: at most {told} answers a second;", end=" ")
    print(f"deadline {arguments.deadline_ms:.0f} ms\n")
    print(
        "| load | asked /s | goodput /s | in time | refused | full | dropped | late |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    seconds = arguments.seconds * arguments.rounds
    for admits in (True, False):
        for percent in LOADS:
            words = "with admission" if admits else "without"
            print(row(f"{percent} % {words}", fates[admits, percent], seconds))
    flat = fates[True, 150]["in time"] / max(1, fates[True, 100]["in time"])
    print(f"\nGoodput at 150 % over that at 100 %, with admission: {flat:.2f}")
    return flat


def virtual(arguments: argparse.Namespace, rows: int) -> None:
    """Print the table in virtual time."""
    one, more = VIRTUAL_SECONDS
    most = rows / (one + more * (rows - 1))
    print(f"\nIn virtual time, batches of up to {rows}: {most:.0f} answers a second\n")
    print(
        "| load | asked /s | goodput /s | in time | refused | full | dropped | late |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    sizes = [size for size in (1, 2, 4, 8, 16, 32) if size <= rows]
    for admits in (True, False):
        for percent in LOADS:
            profile = {size: [one + more * (size - 1)] * 5 for size in sizes}
            gpu = Scheduler(room_bytes=ROOM_BYTES, admits=admits)
            placed = ScheduledModel(
                "mlp", 1, Timing(profile, load_seconds=0.1), max(sizes)
            )
            gpu.place(placed, loaded=True)
            fates = open_loop(
                gpu,
                model="mlp",
                per_second=most * percent / 100,
                seconds=VIRTUAL_LENGTH,
                deadline_seconds=arguments.deadline_ms / 1000,
                run_seconds=uneven(arguments.seed, one, more),
                seed=arguments.seed,
            )
            words = "with admission" if admits else "without"
            print(row(f"{percent} % {words}", fates, VIRTUAL_LENGTH))


async def main(arguments: argparse.Namespace) -> int:
    """Measure and print. Return 1 if goodput with admission falls beyond saturation."""
    for rows in arguments.rows:
        virtual(arguments, rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mlp.onnx"
        path.write_bytes(mlp_bytes(inputs=WIDTH, outputs=16, hidden=arguments.hidden))
        flat = [await measured(arguments, path, rows) for rows in arguments.rows]
    return int(min(flat) < arguments.flat_ratio)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--deadline-ms", type=float, default=100.0)
    parser.add_argument("--hidden", type=int, default=HIDDEN, help="the network's size")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--flat-ratio", type=float, default=0.85)
    sys.exit(asyncio.run(main(parser.parse_args())))
