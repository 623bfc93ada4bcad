"""Measure growth with the past: a database of each size, read in turn.

Every size has a copy of the same database and separate web processes, all running at
once. Each round reads one size after the other, in another order each time, so that
other load on the machine affects all of them alike. CPU is that of the web processes.
"""

import multiprocessing
import os
import sqlite3
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from urllib.parse import urlsplit, urlunsplit

from bench.rig.booking_lab import CLIENTS, HOUR, VAR, Api, Webs, add_history

WEBS = 2
VIEWS = 16
"""How often a round requests each page."""
WEEK_DAYS_BACK = 5
"""Five days of the viewed week are packed on every Gpu."""


@dataclass
class Asked:
    """The times of one kind of request at one size, over all rounds."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0

    @property
    def cpu_ms(self) -> float:
        """Return the web's CPU per request."""
        return 1000 * self.cpu_seconds / len(self.seconds)

    def quantile_ms(self, pct: int) -> float:
        """Return the wall time that ``pct`` of 100 requests did not exceed."""
        return 1000 * statistics.quantiles(self.seconds, n=100)[pct - 1]


Found = dict[int, dict[str, Asked]]


def client(
    number: int, port: int, tokens: list[str], first: float, count: int, bar, out
) -> None:  # type: ignore[no-untyped-def]
    """Book ``count`` free hours, one after another, each for the next person."""
    api = Api(port, tokens[0])
    gpu_ids = [2 * number + 1, 2 * number + 2]
    statuses: Counter[int] = Counter()
    seconds = []
    api("GET", "/standing")
    bar.wait()
    # Others may have kept it waiting for longer than the server keeps a connection.
    api.connection.close()
    for step in range(count):
        start = first + 2 * HOUR * (step // 2)
        body = {
            "gpu_ids": [gpu_ids[step % 2]],
            "start": iso(start),
            "end": iso(start + HOUR),
        }
        api.be(tokens[step % len(tokens)])
        begun = time.perf_counter()
        statuses[api("POST", "/reservations", body)[0]] += 1
        seconds.append(time.perf_counter() - begun)
    out.put((statuses, seconds))


def iso(second: float) -> str:
    """Return a Unix second in the API's form."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(second))


def book_at_once(
    servers: Webs, tokens: list[str], *, clients: int, each: int, first: datetime
) -> tuple[list[float], float, float]:
    """Return the seconds of each booking, those of all together, and the web's CPU.

    Raises:
        SystemExit: one was not made.
    """
    bar, out = multiprocessing.Barrier(clients + 1), multiprocessing.Queue()
    racers = [
        multiprocessing.Process(
            target=client,
            args=(
                number,
                servers.ports[number % len(servers.ports)],
                tokens[number::clients],
                first.timestamp(),
                each,
                bar,
                out,
            ),
        )
        for number in range(clients)
    ]
    for racer in racers:
        racer.start()
    bar.wait()
    begun, cpu = time.monotonic(), servers.cpu_seconds()
    reports = [out.get(timeout=600) for _ in racers]
    took, used = time.monotonic() - begun, servers.cpu_seconds() - cpu
    for racer in racers:
        racer.join()
    statuses = sum((report[0] for report in reports), Counter())
    if set(statuses) != {201}:
        raise SystemExit(f"bookings answered {dict(statuses)}")
    return [one for report in reports for one in report[1]], took, used


def view(servers: Webs, path: str, times: int, *, session: str) -> Asked:
    """Request one page repeatedly; ``/api/...`` like all others.

    Raises:
        SystemExit: it was not answered.
    """
    found = Asked()
    api = Api(servers.ports[0], "")
    del api.headers["Authorization"]
    api.headers["Cookie"] = f"sessionid={session}"
    cpu = servers.cpu_seconds()
    for _ in range(times):
        begun = time.perf_counter()
        status, body = api.get(path)
        found.seconds.append(time.perf_counter() - begun)
        if status != 200:
            raise SystemExit(f"{path} answered {status}: {body[:300]!r}")
    found.cpu_seconds = servers.cpu_seconds() - cpu
    return found


def pages(hour: datetime) -> dict[str, str]:
    """Return the viewed pages, by their names in the table."""
    week = hour - timedelta(days=WEEK_DAYS_BACK)
    span = (week.timestamp(), (week + timedelta(days=7)).timestamp())
    return {
        "week view": f"/api/v1/calendar?start={iso(span[0])}&end={iso(span[1])}",
        "calendar page": "/calendar/",
        "standing page": "/standing/",
        "own reservation": "/reservations/{own}/",
    }


def measure(
    tokens: list[str], sizes: Sequence[int], *, hour: datetime, rounds: int, each: int
) -> Found:
    """Seed a database of every size, and read them in turn."""
    session, own = sign_in(hour)
    found: Found = {size: defaultdict(Asked) for size in sizes}
    with ExitStack() as stack:
        servers = {
            size: stack.enter_context(Webs(WEBS, database_url=url))
            for size, url in seeded(sizes, hour=hour).items()
        }
        paths = {name: p.format(own=own) for name, p in pages(hour).items()}
        for size, web in servers.items():
            for path in paths.values():
                first = view(web, path, 1, session=session)
                print(f"  {size:,}: first {path[:30]} {first.seconds[0]:.2f} s")
                view(web, path, 4, session=session)
        # One more round: the first warms up and does not count.
        for number in range(rounds + 1):
            turn = number % len(sizes)
            for size in (*sizes[turn:], *sizes[:turn]):
                one = _round(
                    servers[size],
                    tokens,
                    paths,
                    session,
                    each=each,
                    first=hour + timedelta(days=2, hours=each * number),
                )
                for name, asked in one.items() if number else ():
                    found[size][name].seconds += asked.seconds
                    found[size][name].cpu_seconds += asked.cpu_seconds
    return found


def _round(
    web: Webs,
    tokens: list[str],
    paths: Mapping[str, str],
    session: str,
    *,
    each: int,
    first: datetime,
) -> dict[str, Asked]:
    seconds, _took, cpu = book_at_once(
        web, tokens, clients=CLIENTS, each=each, first=first
    )
    return {"booking": Asked(seconds, cpu)} | {
        name: view(web, path, VIEWS, session=session) for name, path in paths.items()
    }


def sign_in(hour: datetime) -> tuple[str, int]:
    """Return a session of a user with one past Reservation, and its number."""
    from importlib import import_module

    from django.conf import settings
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.db import connection

    from reservations.models import Reservation

    add_history(1, before=hour)
    own = Reservation.objects.get()
    store = import_module(settings.SESSION_ENGINE).SessionStore()
    store[SESSION_KEY] = str(own.user_id)
    store[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    store[HASH_SESSION_KEY] = own.user.get_session_auth_hash()
    store.save()
    connection.close()
    return str(store.session_key), own.pk


def seeded(sizes: Sequence[int], *, hour: datetime) -> dict[int, str]:
    """Grow one database and keep a copy at each size. Return their addresses."""
    from reservations.store.booking_facts import site_policy
    from reservations.store.usage import store_usage

    urls, stored = {}, 1
    for number, size in enumerate(sizes):
        begun = time.monotonic()
        add_history(size - stored, before=hour)
        stored = size
        # As the worker does every minute.
        store_usage(hour + timedelta(minutes=2 * number), site_policy())
        urls[size] = copied(f"past{size}")
        print(f"  {size:,} past rows after {time.monotonic() - begun:.0f} s more")
    return urls


def copied(name: str) -> str:
    """Copy the present database. Return the copy's DATABASE_URL."""
    from django.db import connection

    settings = connection.settings_dict
    connection.close()
    if connection.vendor == "sqlite":
        path = VAR / f"{name}.sqlite3"
        with closing_sqlite(str(settings["NAME"])) as database:
            database.execute("VACUUM INTO ?", [str(path)])
        return f"sqlite:///{path}"
    import psycopg

    url = urlsplit(os.environ["DATABASE_URL"])
    other = urlunsplit(url._replace(path="/template1"))
    with psycopg.connect(other, autocommit=True) as database:
        database.execute(f'CREATE DATABASE "{name}" TEMPLATE "{settings["NAME"]}"')
    return urlunsplit(url._replace(path=f"/{name}"))


@contextmanager
def closing_sqlite(path: str) -> Iterator[sqlite3.Connection]:
    """Open a database file, and close it."""
    database = sqlite3.connect(path)
    try:
        yield database
    finally:
        database.close()


def told(found: Found) -> Iterator[tuple[str, str, str, str]]:
    """Yield what, figures, targets and ratios, for each line of the table."""
    least = min(found)
    for size, kinds in found.items():
        for name, asked in kinds.items():
            p50, p95 = asked.quantile_ms(50), asked.quantile_ms(95)
            first = found[least][name]
            ratio = (
                ""
                if size == least
                else (
                    f"CPU {asked.cpu_ms / first.cpu_ms:.2f} x, "
                    f"p50 {p50 / first.quantile_ms(50):.2f} x, "
                    f"p95 {p95 / first.quantile_ms(95):.2f} x"
                )
            )
            yield (
                f"{name}, {size:,} past rows",
                f"{asked.cpu_ms:.1f} ms CPU, p50 {p50:.0f} ms, p95 {p95:.0f} ms",
                "<= 1.3 x of the fewest" if ratio else "",
                ratio,
            )
