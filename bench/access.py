"""Measure ssh through the portal beside direct ssh, in the same run.

    python -m bench.access [--connects 20] [--megabytes 128] [--copies 3] [--keys 200]
        [--sessions 50] [--workers 1] [--compiled-mask]

A portal (uvicorn), a broker, a node's streams and a real sshd run on the loopback
address, each in a separate process. A real ssh client uses ``gp.py tunnel`` as its
ProxyCommand. Printed are the time to connect and run ``true``, the throughput of scp in
both directions, the echo of single keystrokes, and the memory of the portal and of the
node's streams for sessions that stay open. The ways take turns, so that other work on
the machine slows both.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.rig.access_site import CLIENT, OF_USER, access_site, proxy
from bench.rig.cluster import cpu_seconds, setup, valkey


@dataclass
class Way:
    """A way to the ssh server: direct, or through the portal."""

    name: str
    words: list[str]
    host: str
    env: dict[str, str]
    connects_ms: list[float] = field(default_factory=list)
    echoes_ms: list[float] = field(default_factory=list)
    rates: dict[str, list[float]] = field(default_factory=dict)
    """Direction of a copy -> MB/s of each."""
    control: list[str] = field(default_factory=list)

    def connect(self) -> None:
        """Take the time of one connection that runs ``true``."""
        self.connects_ms.append(self._seconds("ssh", self.host, "true") * 1e3)

    @contextmanager
    def connected(self, control: Path) -> Iterator[None]:
        """Keep a connection that `copy` uses, so that connecting takes none of its
        time.
        """
        self.control = ["-o", f"ControlPath={control}"]
        line = ["ssh", *self.words, *self.control, "-M", "-N", "-f", self.host]
        subprocess.run(line, env=self.env, check=True, timeout=120)
        yield
        line = ["ssh", *self.words, *self.control, "-O", "exit", "-q", self.host]
        subprocess.run(line, env=self.env, check=True, timeout=120)

    def copy(self, direction: str, source: Path, target: Path) -> None:
        """Take the throughput of one scp over the open connection."""
        there = f"{self.host}:"
        ends = [str(source), there + str(target)]
        if direction == "from the node":
            ends = [there + str(source), str(target)]
        taken = self._seconds("scp", "-q", *self.control, *ends)
        rate = source.stat().st_size / 1e6 / taken
        self.rates.setdefault(direction, []).append(rate)
        target.unlink()

    def type_keys(self, count: int) -> None:
        """Take the times from a byte that is sent to its echo."""
        with self.session() as (put, get):
            for _ in range(count):
                start = time.perf_counter()
                os.write(put, b"x")
                os.read(get, 1)
                self.echoes_ms.append((time.perf_counter() - start) * 1e3)

    def line(self) -> str:
        """Return the figures."""
        connects, echoes = self.connects_ms, self.echoes_ms
        rates = "; ".join(
            f"{direction} {statistics.median(values):.0f} MB/s"
            for direction, values in self.rates.items()
        )
        return (
            f"{self.name}: connect {statistics.median(connects):.0f} ms, "
            f"p95 {p95(connects):.0f}; {rates}; "
            f"echo {statistics.median(echoes):.2f} ms, p95 {p95(echoes):.2f}"
        )

    def _seconds(self, program: str, *words: str) -> float:
        start = time.perf_counter()
        line = [program, *self.words, *words]
        subprocess.run(line, env=self.env, check=True, timeout=120)
        return time.perf_counter() - start

    @contextmanager
    def session(self) -> Iterator[tuple[int, int]]:
        """Keep a session open: descriptors that send to and read from ``cat``."""
        pipe = subprocess.PIPE
        line = ["ssh", *self.words, self.host, "cat"]
        with subprocess.Popen(
            line, env=self.env, stdin=pipe, stdout=pipe, bufsize=0
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


def with_children(pid: int) -> list[int]:
    """Return a process and its children, such as the workers of a server."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [pid, *map(int, listed.split())]


def tunnel_of(host: str) -> int:
    """Return the process of ``gp tunnel`` of an open connection."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if words[-4:] == [str(CLIENT).encode(), b"tunnel", host.encode(), b""]:
                return int(folder.name)
    raise SystemExit(f"there is no tunnel to {host}")


def rss_mib(pid: int) -> float:
    """Return the resident memory of a process and its children."""
    return sum(
        int(line.split()[1]) / 1024
        for one in with_children(pid)
        for line in Path(f"/proc/{one}/status").read_text().splitlines()
        if line.startswith("VmRSS:")
    )


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process and its children."""
    return sum(cpu_seconds(one) for one in with_children(pid))


def measure(args: argparse.Namespace, folder: Path) -> None:
    """Start everything, measure, and print the figures."""
    # Django is set up now.
    import redis
    from django.conf import settings

    users = max(1, -(-args.sessions // OF_USER))
    with ExitStack() as stack:
        site = stack.enter_context(access_site(folder, users, args.workers))
        server, node, sshd = site.web, site.node, site.sshd
        client = redis.Redis.from_url(settings.REDIS_URL)
        tunnel = proxy(alone=not args.compiled_mask)
        port = ["-o", f"Port={sshd.port}"]
        direct = Way("direct", [*sshd.words("none"), *port], "127.0.0.1", site.env(""))
        portal = [
            Way("portal", sshd.words(tunnel), host, site.env(shown))
            for host, shown in site.logins
        ]
        ways = (direct, portal[0])
        print(f"load {os.getloadavg()[0]:.1f} before, {os.cpu_count()} cores")
        for way in ways * args.connects:
            way.connect()
        for way in ways:
            way.type_keys(args.keys)
        source, target = folder / "source", folder / "target"
        source.write_bytes(os.urandom(2**20) * args.megabytes)
        broker = int(client.info("server")["process_id"])
        parts = {"portal": server.pid, "node's streams": node.pid, "broker": broker}
        with (
            direct.connected(folder / "direct.socket"),
            portal[0].connected(folder / "portal.socket"),
        ):
            copying = parts | {"gp tunnel": tunnel_of(portal[0].host)}
            spent = {
                direction: dict.fromkeys(copying, 0.0)
                for direction in ("to the node", "from the node")
            }
            for direction, seconds in spent.items():
                for _ in range(args.copies):
                    direct.copy(direction, source, target)
                    before = {name: cpu_of(pid) for name, pid in copying.items()}
                    portal[0].copy(direction, source, target)
                    for name, pid in copying.items():
                        seconds[name] += cpu_of(pid) - before[name]
        for way in ways:
            print(way.line(), flush=True)
        for direction, rates in portal[0].rates.items():
            ratio = statistics.median(rates) / statistics.median(
                direct.rates[direction]
            )
            print(f"scp {direction} through the portal: {ratio:.2f} of direct")
        mb = args.copies * args.megabytes * 2**20 / 1e6
        for direction, seconds in spent.items():
            shares = (
                f"{name} {value / mb * 1e3:.1f}" for name, value in seconds.items()
            )
            print(f"CPU ms for each MB {direction}: {', '.join(shares)}")
        used = {name: rss_mib(pid) for name, pid in parts.items()}
        for number in range(args.sessions):
            stack.enter_context(portal[number // OF_USER].session())
        for name, pid in parts.items():
            kib = (rss_mib(pid) - used[name]) * 1024 / max(1, args.sessions)
            print(f"{args.sessions} sessions: {name} {kib:.0f} KiB each")
        many = replace(portal[-1], echoes_ms=[])
        many.type_keys(args.keys)
        print(
            f"echo beside {args.sessions} sessions: "
            f"{statistics.median(many.echoes_ms):.2f} ms, p95 {p95(many.echoes_ms):.2f}"
        )
        print(f"load {os.getloadavg()[0]:.1f} after")


def main() -> None:
    """Read the options, and measure with a temporary folder and a private broker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connects", type=int, default=20)
    parser.add_argument("--megabytes", type=int, default=128)
    parser.add_argument("--copies", type=int, default=3)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--sessions", type=int, default=50)
    parser.add_argument("--workers", type=int, default=1, help="of the web server")
    parser.add_argument(
        "--compiled-mask",
        action="store_true",
        help="let gp find the package websockets. Otherwise it has only the standard "
        "library",
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as var:
        setup(var)
        from telemetry import paths

        with valkey(paths.embedded_socket()):
            measure(args, Path(var))


if __name__ == "__main__":
    main()
