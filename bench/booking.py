"""Measure booking over HTTP: its speed, the size of the week view, and races.

    python -m bench.booking [--quick] [--sizes 1000,1000000] [--rounds 1000]
                            [--database sqlite|postgresql]

Starts a separate broker, database (SQLite in a temporary folder, or a private
PostgreSQL; by default that of DATABASE_URL) and web processes, and prints one table
with the machine and the ratios to the targets below. Clients run in separate processes
on the same machine, so on two cores they compete with the server: "CPU a request" is
the server's alone and the fairer figure.
"""

import argparse
import gzip
import json
import multiprocessing
import os
import platform
import shutil
import statistics
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.rig import booking_growth
from bench.rig.booking_lab import (
    CLIENTS,
    GPUS,
    HOUR,
    VAR,
    Api,
    Webs,
    add_history,
    make_lab,
    start_broker,
)
from bench.rig.opening import overlaps
from bench.rig.postgres import postgres

TENSORHIVE_PER_SECOND = (14, 63)


@dataclass
class Row:
    """One line of the table."""

    what: str
    figure: str
    reach: str
    ratio: str


def measure_booking(
    tokens: list[str], *, webs: int, clients: int, each: int, first: datetime
) -> tuple[float, float]:
    """Return (bookings per second, the web's CPU milliseconds per booking)."""
    with Webs(webs) as servers:
        _seconds, took, used = booking_growth.book_at_once(
            servers, tokens, clients=clients, each=each, first=first
        )
    return clients * each / took, 1000 * used / (clients * each)


def measure_week(tokens: list[str], times: int, week: datetime) -> dict[str, float]:
    """Return p50 and p95 in ms and the sizes of the week view."""
    path = "/calendar?" + "&".join(
        f"{name}={at:%Y-%m-%dT%H:%M:%SZ}"
        for name, at in (("start", week), ("end", week + timedelta(days=7)))
    )
    with Webs(1) as servers:
        api = Api(servers.ports[0], tokens[0])
        seconds = []
        body = b""
        for number in range(times + 10):
            begun = time.perf_counter()
            status, body = api("GET", path)
            if status != 200:
                raise SystemExit(f"the calendar answered {status}")
            if number >= 10:
                seconds.append(time.perf_counter() - begun)
    raw = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
    ranked = statistics.quantiles(seconds, n=20)
    return {
        "p50": 1000 * statistics.median(seconds),
        "p95": 1000 * ranked[-1],
        "wire": len(body),
        "raw": len(raw),
        "reservations": len(json.loads(raw)["reservations"]),
    }


def _contester(port: int, token: str, rounds: int, first: float, bar, out) -> None:  # type: ignore[no-untyped-def]
    """In every round, request the same Gpu at the same hour as all others."""
    api = Api(port, token)
    statuses: Counter[int] = Counter()
    winners = []
    for number in range(rounds):
        start = datetime.fromtimestamp(first + 2 * HOUR * number, UTC)
        body = {
            "gpu_ids": [1 + number % GPUS],
            "start": start.isoformat(),
            "end": (start + timedelta(hours=1)).isoformat(),
        }
        bar.wait()
        status = api("POST", "/reservations", body)[0]
        statuses[status] += 1
        if status == 201:
            winners.append(number)
    out.put((statuses, winners))


def measure_contest(
    tokens: list[str], *, rounds: int, first: datetime
) -> tuple[Counter[int], Counter[int], float]:
    """Return (statuses, winners per round, rounds per second)."""
    with Webs(2) as servers:
        bar, out = multiprocessing.Barrier(CLIENTS), multiprocessing.Queue()
        racers = [
            multiprocessing.Process(
                target=_contester,
                args=(
                    servers.ports[number % 2],
                    tokens[number],
                    rounds,
                    first.timestamp(),
                    bar,
                    out,
                ),
            )
            for number in range(CLIENTS)
        ]
        begun = time.monotonic()
        for racer in racers:
            racer.start()
        reports = [out.get(timeout=3600) for _ in racers]
        took = time.monotonic() - begun
        for racer in racers:
            racer.join()
    statuses = sum((report[0] for report in reports), Counter())
    wins = Counter(number for report in reports for number in report[1])
    return statuses, wins, rounds / took


def run(quick: bool, sizes: tuple[int, ...], rounds: int) -> list[Row]:
    """Measure everything. Return the table's rows."""
    from django.db import connection

    tokens = make_lab()
    connection.close()
    hour = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    rows = (
        []
        if not sizes
        else [
            Row(*line)
            for line in booking_growth.told(
                booking_growth.measure(
                    tokens, sizes, hour=hour, rounds=2 if quick else 5, each=12
                )
            )
        ]
    )
    stored = max(10_000, *sizes) if sizes else 10_000
    add_history(stored - (max(sizes) if sizes else 0), before=hour)
    rows += rate_rows(tokens, 20 if quick else 100, hour + timedelta(days=20))
    rows.append(week_row(tokens, 30 if quick else 200, hour, stored))
    connection.close()
    if rounds:
        rows.append(contest_row(tokens, rounds, hour + timedelta(days=90)))
    return rows


def rate_rows(tokens: list[str], each: int, first: datetime) -> list[Row]:
    """Book as fast as possible, with one process or two, one client or eight."""
    rows = []
    for number, (webs, clients) in enumerate([(1, 1), (1, 8), (2, 1), (2, 8)]):
        rate, cpu = measure_booking(
            tokens,
            webs=webs,
            clients=clients,
            each=each,
            first=first + timedelta(days=6 * number),
        )
        low, high = (rate / peer for peer in TENSORHIVE_PER_SECOND)
        rows.append(
            Row(
                f"bookings/s, {clients} clients, {webs} web",
                f"{rate:.0f}/s, {cpu:.1f} ms CPU",
                ">= 5 x 14 to 63/s, < 5 ms",
                f"{high:.1f} to {low:.1f} x",
            )
        )
    return rows


def week_row(tokens: list[str], times: int, hour: datetime, stored: int) -> Row:
    """Measure the fullest week, which is packed on every Gpu."""
    week = measure_week(tokens, times, hour - timedelta(days=8))
    return Row(
        f"week view, {GPUS} GPUs, {stored:,} rows, {week['reservations']:.0f} in view",
        f"p50 {week['p50']:.0f} ms, p95 {week['p95']:.0f} ms, "
        f"{week['wire'] / 1000:.0f} kB gzip, {week['raw'] / 1000:.0f} kB plain",
        "p95 < 100 ms, < 200 kB",
        f"{week['p95'] / 100:.2f} and {week['wire'] / 200_000:.2f} of the limits",
    )


def contest_row(tokens: list[str], rounds: int, first: datetime) -> Row:
    """Race for one Gpu and hour, round after round."""
    statuses, wins, rate = measure_contest(tokens, rounds=rounds, first=first)
    doubled = sum(count - 1 for count in wins.values()) + overlaps()
    strange = sum(n for status, n in statuses.items() if status not in (201, 409))
    lost = rounds - len(wins)
    return Row(
        f"{rounds} contested rounds, {CLIENTS} clients, 2 web",
        f"{doubled} double, {strange} errors, {lost} without a winner, "
        f"{rate:.0f} rounds/s",
        "0, and no deadlock or 500",
        "met" if not (doubled or strange or lost) else "MISSED",
    )


def machine() -> str:
    """Return a description of the machine."""
    model = "unknown processor"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{model}, {os.cpu_count()} cores, load {load}; "
        f"CPython {platform.python_version()}"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument(
        "--sizes", default="1000,10000,100000,1000000", help="past reservations"
    )
    parser.add_argument("--rounds", type=int, help="contested rounds; 0: none")
    parser.add_argument("--database", choices=["sqlite", "postgresql"])
    asked = parser.parse_args()
    sizes = tuple(sorted(int(size) for size in asked.sizes.split(",") if size))
    rounds = asked.rounds
    if rounds is None:
        rounds = 50 if asked.quick else 1000
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, VAR, ignore_errors=True)
        if asked.database == "sqlite":
            os.environ.pop("DATABASE_URL", None)
        elif asked.database == "postgresql":
            os.environ["DATABASE_URL"] = stack.enter_context(postgres())
        broker = start_broker()
        stack.callback(broker.wait, 10)
        stack.callback(broker.terminate)
        before = machine()
        rows = run(asked.quick, sizes, rounds)
        from django.db import connection

        print(f"\nbench/booking.py on {before}; {connection.vendor}")
        widths = [
            max(len(getattr(row, name)) for row in rows) for name in vars(rows[0])
        ]
        for row in rows:
            cells = vars(row).values()
            print(" | ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)))


if __name__ == "__main__":
    main()
