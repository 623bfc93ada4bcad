"""Measure calls of a served model through the portal's door beside direct ones, below
and beyond the capacity of its server.

    python -m bench.tunnel.served_load [--seconds 3] [--rounds 2] [--layers 1200]
        [--most-batch 1] [--deadline-ms 150] [--pairs 300] [--postgres]
        [--real-time]
    python -m bench.tunnel.served_load --language-model [--pairs 100] [--real-time]

The web process of production, the broker, a node's tunnel and the server that a job of
kind ``serve`` starts each run in a separate process (`rig/served_site.py`). This
process only sends requests. First come pairs of calls, one at a time: one at the
server's socket, one through the door with a token. The difference of a pair is what
door, broker, tunnel and node add. Then the capacity at the socket is measured. Requests
come at times of a Poisson process at 50 to 300 % of it, regardless of earlier ones and
each with a deadline, in turns at the socket and through the door. Goodput is the number
of answers inside the deadline, counted from when the request was due, per second. A
signed-in person opens a page twice a second meanwhile.

With ``--language-model`` a tiny Llama is served by the server of transformers, and the
calls are those of `language_model_calls.py`.

It returns 1 if goodput through the door at the greatest load is below 0.9 of that at
100 %, or if a refused call has no Retry-After or no sentence.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.access import p95
from bench.rig.cluster import cpu_seconds, setup
from bench.rig.postgres import postgres
from bench.rig.served_site import (
    LANGUAGE_MODEL,
    MODEL,
    READY_SECONDS,
    ServedSite,
    served_site,
)
from bench.rig.serving_client import Client, Refusal, answers_per_second
from telemetry.proc_stat import descendants, process_table

TOKENS = 8
"""Of an answer of a language model."""
TEXT_SECONDS = 300.0
"""How long PyTorch and the server of a language model may take to load."""
WIDTH = 512
LOADS = (50, 75, 100, 150, 200, 300)
AT_ONCE = 16
"""Calls at once while the capacity is measured."""
WARM_CALLS = 20
PAGE = "/"
PAGE_SECONDS = 0.5
DIRECT, DOOR = "direct", "door"
FLAT_RATIO = 0.9


def network(layers: int) -> bytes:
    """Return a network that multiplies by the same small matrix many times.

    The matrix stays in the processor's cache, so that other work on the machine's
    memory does not change its speed.
    """
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    values = np.random.default_rng(0).standard_normal((WIDTH, WIDTH)) / WIDTH**0.5
    steps, last = [], "x"
    for number in range(layers):
        product, after = f"p{number}", "y" if number == layers - 1 else f"t{number}"
        steps.append(helper.make_node("MatMul", [last, "w"], [product]))
        steps.append(helper.make_node("Tanh", [product], [after]))
        last = after
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH])
        for name in "xy"
    )
    weights = [numpy_helper.from_array(values.astype("float32"), "w")]
    graph = helper.make_graph(steps, "net", [x], [y], weights)
    sets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=9)
    return bytes(model.SerializeToString())


def request_body() -> tuple[bytes, int]:
    """Return a request of one row in the binary form, and the size of its JSON."""
    import numpy as np

    tensor = np.ones((1, WIDTH), dtype="<f4").tobytes()
    said = {"name": "x", "datatype": "FP32", "shape": [1, WIDTH]}
    said["parameters"] = {"binary_data_size": len(tensor)}
    text = json.dumps({"inputs": [said]}).encode()
    return text + tensor, len(text)


@dataclass
class Load:
    """The outcomes of the requests of one load, at the door or at the socket."""

    fates: Counter[str] = field(default_factory=Counter)
    answers: list[float] = field(default_factory=list)
    """Seconds from when a request was due to its answer."""
    pages: list[float] = field(default_factory=list)
    cpu: Counter[str] = field(default_factory=Counter)
    """CPU seconds of each process."""
    seconds: float = 0.0

    @property
    def goodput(self) -> float:
        """Answers inside the deadline, per second."""
        return self.fates["in time"] / self.seconds

    def row(self, name: str) -> str:
        """Return one line of the table."""
        total = sum(self.fates.values())
        kinds = ("in time", "refused", "full", "dropped", "late")
        parts = [f"{100 * self.fates[kind] / total:.1f} %" for kind in kinds]
        p50, most = statistics.median(self.answers) * 1e3, p95(self.answers) * 1e3
        shares = " / ".join(
            f"{100 * self.cpu[one] / self.seconds:.0f}" for one in PROCESSES
        )
        page = p95(self.pages) * 1e3
        return (
            f"| {name} | {total / self.seconds:.0f} | {self.goodput:.0f} "
            f"| {' | '.join(parts)} | {p50:.1f} | {most:.1f} | {page:.0f} | {shares} |"
        )


PROCESSES = ("server", "web", "node", "broker", "load")
HEAD = (
    "| load | asked /s | goodput /s | in time | refused | full | dropped | late "
    "| p50 ms | p95 ms | page, p95 ms | CPU %: " + " / ".join(PROCESSES) + " |\n"
    "| --- |" + " ---: |" * 11
)


def cpu_now(site: ServedSite) -> Counter[str]:
    """Return the CPU seconds of the processes until now. "load" is this one."""
    used = Counter({name: cpu_seconds(pid) for name, pid in site.pids.items()})
    used["load"] = time.process_time()
    return used


async def page_seconds(site: ServedSite) -> float:
    """Return the seconds of one page, on a connection that is opened for it."""
    begun = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(
        f"GET {PAGE} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
        f"Accept: text/html\r\nCookie: sessionid={site.session}\r\n\r\n".encode()
    )
    answer = await reader.read(-1)
    writer.close()
    if not answer.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"the page was answered with {answer[:200]!r}")
    return time.perf_counter() - begun


async def until_ready(clients: dict[str, Client]) -> None:
    """Wait until the model is loaded, as both ways show."""
    end = time.monotonic() + READY_SECONDS
    for name, client in clients.items():
        while not await client.ready():
            if time.monotonic() > end:
                raise SystemExit(f"the model is not ready: {name}")
            await asyncio.sleep(0.2)


async def print_pairs(clients: dict[str, Client], count: int, site: ServedSite) -> None:
    """Measure and print calls one at a time, in turns."""
    found: dict[str, list[float]] = {way: [] for way in clients}
    before: Counter[str] = Counter()
    for number in range(WARM_CALLS + count):
        if number == WARM_CALLS:
            before = cpu_now(site)
        for way, client in clients.items():
            begun = time.perf_counter()
            if (fate := await client.infer(None)) != "answered":
                raise SystemExit(f"a single call was {fate}: {client.refusals[-1]}")
            if number >= WARM_CALLS:
                found[way].append(time.perf_counter() - begun)
    used = cpu_now(site)
    found["difference of a pair"] = [
        door - own for door, own in zip(found[DOOR], found[DIRECT], strict=True)
    ]
    print("\n| one call at a time | p50 ms | p95 ms |\n| --- | ---: | ---: |")
    for name, seconds in found.items():
        print(
            f"| {name} | {statistics.median(seconds) * 1e3:.2f} "
            f"| {p95(seconds) * 1e3:.2f} |"
        )
    spent = (f"{one} {1e3 * (used[one] - before[one]) / count:.2f}" for one in used)
    print(f"\nCPU ms of a pair: {', '.join(spent)}", flush=True)


async def add_load(
    load: Load,
    site: ServedSite,
    client: Client,
    *,
    per_second: float,
    seconds: float,
    deadline_seconds: float,
    seed: int,
) -> None:
    """Send the requests of one open-loop load, and add the outcomes."""
    lots, tasks = random.Random(seed), set[asyncio.Task[None]]()
    over = asyncio.Event()

    async def ask_once(due: float) -> None:
        left = deadline_seconds - (time.perf_counter() - due)
        fate = "late" if left <= 0 else await client.infer(left * 1000)
        if fate == "answered":
            passed = time.perf_counter() - due
            load.answers.append(passed)
            fate = "in time" if passed <= deadline_seconds else "late"
        load.fates[fate] += 1

    async def open_pages() -> None:
        while not over.is_set():
            begun = time.perf_counter()
            load.pages.append(await page_seconds(site))
            left = PAGE_SECONDS - (time.perf_counter() - begun)
            await asyncio.sleep(max(0.0, left))

    pages = asyncio.create_task(open_pages())
    before, begun = cpu_now(site), time.perf_counter()
    due = begun
    while due < begun + seconds:
        due += lots.expovariate(per_second)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(ask_once(due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    load.seconds += time.perf_counter() - begun
    used = cpu_now(site)
    used.subtract(before)
    load.cpu.update(used)
    over.set()
    # Requests that still wait get an answer or a refusal, so that the next load begins
    # with an empty queue.
    await asyncio.gather(pages, *tasks)


def refusals_at_fault(refusals: list[Refusal]) -> list[Refusal]:
    """Return the refusals without a Retry-After or a sentence."""

    def is_clear(one: Refusal) -> bool:
        if b"\r\nretry-after: " not in one.head.lower():
            return False
        try:
            return len(str(json.loads(one.body)["detail"])) > 10
        except (ValueError, KeyError):
            return False

    return [one for one in refusals if not is_clear(one)]


def postgres_pids() -> list[int]:
    """Return the processes of the database, if it is PostgreSQL. They work in its
    folder.
    """
    from django.db import connection

    if connection.vendor != "postgresql":
        return []
    with connection.cursor() as cursor:
        cursor.execute("SHOW data_directory")
        folder = cursor.fetchone()[0]
    return [
        one.pid
        for one in process_table()
        if one.comm == "postgres"
        and str(Path(f"/proc/{one.pid}/cwd").readlink()) == folder
    ]


def prefer() -> None:
    """Give the processes real-time priority, so that other work does not delay them."""
    children = [one.pid for one in descendants(os.getpid())]
    for pid in (*children, os.getpid(), *postgres_pids()):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))


async def measure(site: ServedSite, args: argparse.Namespace) -> int:
    """Measure and print. Return the exit code."""
    body, json_bytes = request_body()
    clients = {
        DIRECT: Client(site.socket, MODEL, body, json_bytes),
        DOOR: Client(
            site.port,
            MODEL,
            body,
            json_bytes,
            prefix=f"/serve/{site.job}",
            token=site.token,
        ),
    }
    await until_ready(clients)
    if args.real_time:
        await asyncio.to_thread(prefer)
    print(f"load {os.getloadavg()[0]:.1f} before, {os.cpu_count()} cores")
    await print_pairs(clients, args.pairs, site)
    if not args.rounds:
        return 0
    alone = [await page_seconds(site) for _ in range(20)]
    loads: defaultdict[tuple[int, str], Load] = defaultdict(Load)
    most: list[float] = []
    for turn in range(args.rounds):
        # Each round uses the present capacity, because others use the machine too.
        most.append(await answers_per_second(clients[DIRECT], args.seconds, AT_ONCE))
        for percent in args.loads:
            for way, client in clients.items():
                await add_load(
                    loads[percent, way],
                    site,
                    client,
                    per_second=most[-1] * percent / 100,
                    seconds=args.seconds,
                    deadline_seconds=args.deadline_ms / 1000,
                    seed=args.seed + turn,
                )
    told = ", ".join(f"{one:.0f}" for one in most)
    print(f"\nAt most {told} answers a second at the socket.", end=" ")
    print(f"Deadline {args.deadline_ms:.0f} ms. Page alone {p95(alone) * 1e3:.0f} ms.")
    print(f"\n{HEAD}")
    for (percent, way), load in sorted(loads.items()):
        print(load.row(f"{percent} %, {way}"), flush=True)
    return print_verdict(loads, clients[DOOR].refusals)


def print_verdict(loads: dict[tuple[int, str], Load], refusals: list[Refusal]) -> int:
    """Print the ratios. Return the exit code."""
    top = max(percent for percent, _ in loads)
    flat = 0.0
    for way in (DIRECT, DOOR):
        flat = loads[top, way].goodput / loads[100, way].goodput
        print(f"Goodput at {top} % over that at 100 %, {way}: {flat:.2f}")
    faults = refusals_at_fault(refusals)
    if refusals:
        seconds = [one.seconds for one in refusals]
        codes = Counter(
            (one.status, str(json.loads(one.body).get("code"))) for one in refusals
        )
        words = ", ".join(f"{count} {kind}" for kind, count in codes.most_common())
        print(
            f"{len(refusals)} calls were refused at the door ({words}) after "
            f"{statistics.median(seconds) * 1e3:.1f} ms (p95 {p95(seconds) * 1e3:.1f})"
        )
    if faults:
        print(f"{len(faults)} without Retry-After or sentence: {faults[0]}")
    print(f"load {os.getloadavg()[0]:.1f} after")
    return int(flat < FLAT_RATIO or bool(faults))


def measure_text(site: ServedSite, args: argparse.Namespace) -> int:
    """Measure and print calls of a language model."""
    from bench.tunnel.language_model_calls import compare, until_loaded

    url = f"http://127.0.0.1:{site.port}/serve/{site.job}/v1"
    until_loaded(url, site.token, TEXT_SECONDS)
    if args.real_time:
        prefer()
    print(f"load {os.getloadavg()[0]:.1f} before, {os.cpu_count()} cores\n")
    compare(
        url,
        str(site.socket),
        site.token,
        model=LANGUAGE_MODEL,
        calls=args.pairs,
        tokens=TOKENS,
    )
    print(f"\nload {os.getloadavg()[0]:.1f} after")
    return 0


def main() -> int:
    """Read the options, and measure with a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--layers", type=int, default=1200, help="of the network")
    parser.add_argument("--most-batch", type=int, default=1, help="rows of one run")
    parser.add_argument("--deadline-ms", type=float, default=150.0)
    parser.add_argument("--pairs", type=int, default=300, help="calls one at a time")
    parser.add_argument("--loads", type=int, nargs="+", default=LOADS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--postgres", action="store_true", help="instead of SQLite")
    parser.add_argument("--language-model", action="store_true")
    parser.add_argument(
        "--real-time",
        action="store_true",
        help="give the processes real-time priority, on a machine with other work",
    )
    args = parser.parse_args()
    with ExitStack() as stack:
        var = stack.enter_context(tempfile.TemporaryDirectory())
        if args.postgres:
            os.environ["DATABASE_URL"] = stack.enter_context(postgres())
        setup(var)
        model = None if args.language_model else network(args.layers)
        site = stack.enter_context(
            served_site(Path(var), model=model, most_batch=args.most_batch)
        )
        if args.language_model:
            return measure_text(site, args)
        return asyncio.run(measure(site, args))


if __name__ == "__main__":
    sys.exit(main())
