"""Kill the portal in the middle of ssh sessions, and compare every byte.

    python -m bench.tunnel.ssh_restart [--megabytes 64] [--kills 3] [--signal KILL]

The portal, a broker, a node's streams and a real sshd run on the loopback address. A
real scp in each direction and an interactive shell go through ``gp tunnel``. Meanwhile
the web process is ended and started again several times. Printed are the sums of the
files, the keys and their echo, what the user saw, how long the shell waited, and the
memory of the node.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.request import urlopen

from bench.rig.access_site import AccessSite, access_site, proxy
from bench.rig.cluster import process, setup, valkey

DOWN_SECONDS = 1.0
BETWEEN_SECONDS = 8.0
KEYS_SECONDS = 0.02


class Shell:
    """An interactive ssh session in a terminal, which types numbered lines."""

    def __init__(self, site: AccessSite, host: str, shown: str) -> None:
        self.screen, self.longest_seconds, self.typed = b"", 0.0, 0
        here, there = pty.openpty()
        line = [
            "ssh",
            "-tt",
            *site.sshd.words(proxy()),
            host,
            "stty -echo; echo ready; cat",
        ]
        self.child = subprocess.Popen(
            line, env=site.env(shown), stdin=there, stdout=there, stderr=there
        )
        os.close(there)
        self.here, self.over = here, threading.Event()
        while b"ready" not in self.screen:
            self._drain(1)
        self.thread = threading.Thread(target=self._type)
        self.thread.start()

    def _type(self) -> None:
        while not self.over.is_set():
            os.write(self.here, b"<%d>\n" % self.typed)
            self.typed += 1
            since = time.monotonic()
            if self._drain(KEYS_SECONDS):
                self.longest_seconds = max(
                    self.longest_seconds, time.monotonic() - since
                )

    def _drain(self, seconds: float) -> bool:
        found = False
        while select.select([self.here], [], [], seconds)[0]:
            with suppress(OSError):
                self.screen += os.read(self.here, 65_536)
                found = True
        return found

    def end(self) -> list[int]:
        """Return the numbers that came back, in order."""
        self.over.set()
        self.thread.join()
        end = time.monotonic() + 30
        last = b"<%d>" % (self.typed - 1)
        while last not in self.screen and time.monotonic() < end:
            self._drain(0.2)
        os.write(self.here, b"\x04")
        status = self.child.wait(30)
        if status:
            raise SystemExit(f"the shell ended with {status}: {self.screen[-500:]!r}")
        words = self.screen.replace(b"\r", b"").split(b"\n")
        return [int(one[1:-1]) for one in words if one[:1] == b"<"]


def digest(path: Path) -> str:
    """Return the sum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def wait_for(url: str) -> None:
    """Wait until the portal answers."""
    while True:
        with suppress(OSError), urlopen(f"{url}/healthz", timeout=30):
            return
        time.sleep(0.2)


def size_of(path: Path) -> int:
    """Return the size of a file, or 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


def rss_mib(pid: int) -> float:
    """Return the largest resident memory of a process so far."""
    text = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in text.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def run(args: argparse.Namespace, folder: Path) -> None:
    """Start everything, kill the portal, and compare."""
    source = folder / "source"
    source.write_bytes(os.urandom(2**20) * args.megabytes)
    with ExitStack() as stack:
        site = stack.enter_context(access_site(folder, users=1))
        ((host, shown),) = site.logins
        words, env = site.sshd.words(proxy()), site.env(shown)
        before = rss_mib(site.node.pid)
        shell = Shell(site, host, shown)
        up, down = folder / "up", folder / "down"
        limited = ["-l", str(args.kbits)]
        ways = {
            "to the node": ["scp", "-q", *limited, *words, source, f"{host}:{up}"],
            "from the node": ["scp", "-q", *limited, *words, f"{host}:{source}", down],
        }
        copies = {
            name: subprocess.Popen(line, env=env, stderr=subprocess.PIPE, text=True)
            for name, line in ways.items()
        }
        until = time.monotonic() + 60
        while not (size_of(up) and size_of(down)) and time.monotonic() < until:
            time.sleep(0.1)
        web = site.web
        for number in range(args.kills):
            time.sleep(BETWEEN_SECONDS)
            running = [name for name, one in copies.items() if one.poll() is None]
            web.send_signal(getattr(signal, f"SIG{args.signal}"))
            web.wait()
            at = time.strftime("%H:%M:%S")
            print(f"{at} SIG{args.signal} number {number + 1} during {running}")
            time.sleep(DOWN_SECONDS)
            web = stack.enter_context(process(*site.web_words))
            wait_for(site.url)
        for name, one in copies.items():
            _, told = one.communicate(timeout=300)
            there = up if name == "to the node" else down
            same = one.returncode == 0 and digest(there) == digest(source)
            print(f"scp {name}: status {one.returncode}, sha256 same: {same}")
            print(f"    it printed: {told!r}")
        numbers = shell.end()
        exact = numbers == list(range(shell.typed))
        print(f"shell: {shell.typed} lines typed, each came back once: {exact}")
        told = [line for line in shell.screen.split(b"\n") if b"gp" in line]
        print(f"    it showed: {told}")
        print(
            f"node: {before:.0f} MiB before, {rss_mib(site.node.pid):.0f} MiB at most"
        )


def main() -> None:
    """Read the options, and run with a temporary folder and a private broker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=64)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--signal", default="KILL", choices=["KILL", "TERM"])
    parser.add_argument("--kbits", type=int, default=16_000, help="limit of scp")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as var:
        setup(var)
        from telemetry import paths

        with valkey(paths.embedded_socket()):
            run(args, Path(var))


if __name__ == "__main__":
    sys.exit(main())
