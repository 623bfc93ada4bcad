"""Measure ssh through the portal beside direct ssh, in the same run.

    python -m bench.access [--connects 10] [--megabytes 32] [--keys 100] [--sessions 16]

A portal (uvicorn), a broker, a node's streams and a real sshd run on the loopback
address. A real ssh client uses ``gp.py tunnel`` as its ProxyCommand. Printed are the
time to connect and run ``true``, the throughput of a copy, the echo of single
keystrokes, and the memory of the portal for sessions that stay open.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.rig.cluster import process, setup, valkey
from gpuportal.pages import client_files

CLIENT = client_files.folder() / client_files.ONE_FILE
READY_SECONDS = 60.0


@dataclass
class Way:
    """A way to the ssh server: direct, or through the portal."""

    name: str
    words: list[str]
    host: str
    env: dict[str, str]

    def command(self, *words: str) -> list[str]:
        """Return an ssh command."""
        return ["ssh", *self.words, self.host, *words]

    def connects_ms(self, count: int) -> list[float]:
        """Return the times of connections that run ``true``."""
        return [self._seconds("true") * 1e3 for _ in range(count)]

    def megabytes_per_second(self, megabytes: int) -> float:
        """Return the throughput to the node, without the time to connect."""
        connect = statistics.median(self._seconds("true") for _ in range(3))
        data = os.urandom(2**20) * megabytes
        taken = self._seconds("cat > /dev/null", data)
        return len(data) / 1e6 / max(0.001, taken - connect)

    def echoes_ms(self, count: int) -> list[float]:
        """Return the times from a byte that is sent to its echo."""
        with self._session() as (put, get):
            times = []
            for _ in range(count):
                start = time.perf_counter()
                os.write(put, b"x")
                os.read(get, 1)
                times.append((time.perf_counter() - start) * 1e3)
            return times

    def open_sessions(self, stack: ExitStack, count: int) -> None:
        """Open sessions that stay until the stack ends."""
        for _ in range(count):
            stack.enter_context(self._session())

    def _seconds(self, command: str, data: bytes = b"") -> float:
        start = time.perf_counter()
        subprocess.run(
            self.command(command), input=data, env=self.env, check=True, timeout=120
        )
        return time.perf_counter() - start

    @contextmanager
    def _session(self) -> Iterator[tuple[int, int]]:
        pipe = subprocess.PIPE
        with subprocess.Popen(
            self.command("cat"), env=self.env, stdin=pipe, stdout=pipe, bufsize=0
        ) as child:
            assert child.stdin and child.stdout
            try:
                os.write(child.stdin.fileno(), b"x")
                os.read(child.stdout.fileno(), 1)
                yield child.stdin.fileno(), child.stdout.fileno()
            finally:
                child.kill()


def p95(values: list[float]) -> float:
    """Return the 95th percentile."""
    return sorted(values)[max(0, round(0.95 * len(values)) - 1)]


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def measure(args: argparse.Namespace, folder: Path) -> None:
    """Start everything, measure, and print the table."""
    # Django is set up now.
    import redis
    from django.conf import settings
    from django.core.management import call_command
    from django.utils import timezone

    from placement.access.frame_lists import NODE
    from reservations.accounts.api_tokens import create_token
    from reservations.models import User
    from reservations.rules.lifecycle import State
    from tests.factories import make_gpus, make_membership, make_node, make_reservation
    from tests.placement.access.ssh_servers import ssh_server
    from tests.placement.access.stream_nodes import streams_of
    from tests.placement.nodes import make_settings
    from tests.placement.serving.kitchen import token_of

    call_command("migrate", verbosity=0, interactive=False)
    user = User.objects.create_user("bench")
    make_membership(user, "bench")
    row = make_node("node1")
    made = make_reservation(user, make_gpus(1, row), state=State.ACTIVE)
    now = timezone.now()
    shown = create_token(user=user, label="b", scopes=["job"], days=1, now=now)[1]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        web_port = free.getsockname()[1]
    url = f"http://127.0.0.1:{web_port}"
    web = ("-m", "uvicorn", "--lifespan", "off", "--log-level", "error")
    with ExitStack() as stack:
        server = stack.enter_context(
            process(*web, "--port", str(web_port), "gpuportal.asgi:application")
        )
        sshd = stack.enter_context(ssh_server(folder / "sshd"))
        (folder / "node").mkdir()
        node = make_settings(
            folder / "node",
            redis_url=settings.REDIS_URL,
            web_url=url,
            sshd_port=sshd.port,
        )
        token_of(row, node)
        stack.enter_context(streams_of(node))
        client = redis.Redis.from_url(settings.REDIS_URL)
        until = time.monotonic() + READY_SECONDS
        while not client.exists(NODE + "node1"):
            if time.monotonic() > until:
                raise SystemExit("the node did not connect")
            time.sleep(0.1)
        env = os.environ | {"GPUPORTAL_URL": url, "GPUPORTAL_TOKEN": shown}
        proxy = f"{sys.executable} -S {CLIENT} tunnel %h"
        port = ["-o", f"Port={sshd.port}"]
        ways = (
            Way("direct", [*sshd.words("none"), *port], "127.0.0.1", env),
            Way("portal", sshd.words(proxy), f"r{made.pk}.gpuportal", env),
        )
        print(f"load {os.getloadavg()[0]:.1f} before, {os.cpu_count()} cores")
        rates = []
        for way in ways:
            connects = way.connects_ms(args.connects)
            rates.append(way.megabytes_per_second(args.megabytes))
            echoes = way.echoes_ms(args.keys)
            print(
                f"{way.name}: connect {statistics.median(connects):.0f} ms, "
                f"p95 {p95(connects):.0f}; copy {rates[-1]:.1f} MB/s; "
                f"echo {statistics.median(echoes):.2f} ms, p95 {p95(echoes):.2f}",
                flush=True,
            )
        print(f"copy through the portal: {rates[1] / rates[0]:.2f} of direct")
        before = rss_mib(server.pid)
        ways[1].open_sessions(stack, args.sessions)
        more = rss_mib(server.pid) - before
        kib = more * 1024 / args.sessions
        print(f"{args.sessions} sessions: portal {more:+.1f} MiB, {kib:.0f} KiB each")
        print(f"load {os.getloadavg()[0]:.1f} after")


def main() -> None:
    """Read the options, and measure with a temporary folder and a private broker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connects", type=int, default=10)
    parser.add_argument("--megabytes", type=int, default=32)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--sessions", type=int, default=16, help="at most 16 a user")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as var:
        setup(var)
        from telemetry import paths

        with valkey(paths.embedded_socket()):
            measure(args, Path(var))


if __name__ == "__main__":
    main()
