"""Measure a job that prints 100 MB/s until its log has a gigabyte, and its effects.

    python -m bench.logs [--megabytes 1000] [--rate 100]

A separate portal with one simulated node. Memory is the largest resident set of each
process. Frames are those of the board. A page is the job's state over the API. The tail
is the data that an open page of the job gets, compared with the time in each line.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import redis
import websockets.exceptions
from websockets.sync.client import connect
from websockets.typing import Origin

from bench.recovery import log_in
from tests.faults.running_portal import RunningPortal
from tests.gpuportal.running import manage

PARTS = {
    "node worker": "-Q node.sim-a",
    "web": "gpuportal.asgi:application",
    "ingest": "manage.py ingest",
    "broker": "valkey-server",
}
MB = 10**6
STAMP = re.compile(r"at (\d{10}\.\d{3}) x")
PASSWORD = "correct horse battery staple"
"""The default password of the tests' factories."""
SCRIPT = """#!{python}
import os, time
line = "x" * 80
began, written = time.monotonic(), 0
while written < {total}:
    stamp = f"at {{time.time():.3f}} "
    block = ((stamp + line + "\\n") * 10_000).encode()
    os.write(1, block)
    written += len(block)
    time.sleep(max(0.0, written / {rate} - (time.monotonic() - began)))
print("last line", flush=True)
"""


class Watch(threading.Thread):
    """Looks at intervals until it is stopped."""

    def __init__(self, pause_seconds: float) -> None:
        super().__init__(daemon=True)
        self.pause_seconds, self.over = pause_seconds, threading.Event()

    def run(self) -> None:
        while not self.over.wait(self.pause_seconds):
            self.look()

    def look(self) -> None:
        """One look."""

    def stop(self) -> None:
        """Stop looking."""
        self.over.set()
        self.join(10)


class Memory(Watch):
    """The largest resident set of each part, its children added up."""

    def __init__(self, lab: RunningPortal) -> None:
        super().__init__(0.5)
        self.pids = {name: lab.pids(part) for name, part in PARTS.items()}
        self.first = self.now()
        self.most = dict(self.first)

    def now(self) -> dict[str, float]:
        """Return the MiB of each part."""
        return {
            name: sum(map(_resident_bytes, pids)) / 2**20
            for name, pids in self.pids.items()
        }

    def look(self) -> None:
        for name, mib in self.now().items():
            self.most[name] = max(self.most[name], mib)


def _resident_bytes(pid: int) -> int:
    try:
        pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    except (FileNotFoundError, IndexError):
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


class Frames(Watch):
    """The times of the board's frames."""

    def __init__(self, lab: RunningPortal) -> None:
        super().__init__(0.0)
        path = str(lab.var / "run" / "valkey.sock")
        self.link = redis.Redis(unix_socket_path=path).pubsub()
        self.link.subscribe("telemetry.frame")
        self.at: list[float] = []

    def look(self) -> None:
        message = self.link.get_message(timeout=1.0)
        if message is not None and message["type"] == "message":
            self.at.append(time.monotonic())

    def longest(self) -> float:
        """Return the longest time between two."""
        return max(b - a for a, b in zip(self.at, self.at[1:], strict=False))


class Page(Watch):
    """The web's response time for the job."""

    def __init__(self, lab: RunningPortal, job: int) -> None:
        super().__init__(0.25)
        self.lab, self.job, self.took = lab, job, list[float]()

    def look(self) -> None:
        began = time.monotonic()
        self.lab.job(self.job)
        self.took.append(time.monotonic() - began)


class Tail(threading.Thread):
    """An open page of the job: the age of the data that it gets."""

    def __init__(self, base: str, cookie: str, job: int) -> None:
        super().__init__(daemon=True)
        self.address = base.replace("http", "ws", 1) + f"/ws/jobs/{job}/"
        self.base, self.cookie = base, cookie
        self.ages: list[float] = []
        self.bytes = 0
        self.last = ""

    def run(self) -> None:
        """Read until the socket ends."""
        try:
            with connect(
                self.address,
                origin=Origin(self.base),
                additional_headers={"Cookie": self.cookie},
                max_size=None,
            ) as link:
                while True:
                    self._see(json.loads(link.recv()))
        except websockets.exceptions.WebSocketException:
            return

    def _see(self, message: dict[str, Any]) -> None:
        if message["type"] != "job.log":
            return
        now = time.time()
        self.bytes += message["bytes"]
        self.last = (message["data"].splitlines() or [self.last])[-1]
        stamps = STAMP.findall(message["data"])
        if stamps:
            self.ages.append(now - float(stamps[-1]))


def part_of(values: list[float], share: float) -> float:
    """Return the value that so large a share does not exceed."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def _blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(2**20):
            yield block


def sum_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    digest = hashlib.sha256()
    for block in _blocks(path):
        digest.update(block)
    return digest.hexdigest()


def search(lab: RunningPortal, job: int, wanted: str) -> tuple[float, int]:
    """Return (seconds, lines) of a search through the whole log."""
    began, offset, hits = time.monotonic(), 0, 0
    while offset is not None:
        words = urllib.parse.urlencode({"q": wanted, "offset": offset})
        found = lab.ask("GET", f"jobs/{job}/log/search?{words}")
        hits, offset = hits + len(found["hits"]), found["next_offset"]
    return time.monotonic() - began, hits


def download(lab: RunningPortal, cookie: str, job: int) -> tuple[float, str]:
    """Return (seconds, sha256) of the whole log, downloaded like a browser."""
    asked = urllib.request.Request(f"{lab.address}/jobs/{job}/log.txt")
    asked.add_header("Cookie", cookie)
    began, digest = time.monotonic(), hashlib.sha256()
    with urllib.request.urlopen(asked, timeout=120) as answer:
        while block := answer.read(2**20):
            digest.update(block)
    return time.monotonic() - began, digest.hexdigest()


def row(name: str, value: str) -> None:
    """Print one line of the table."""
    print(f"{name:<52}{value:>24}", flush=True)


def main() -> None:
    """Print, measure, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=100, help="MB/s")
    options = parser.parse_args()
    var = Path(tempfile.mkdtemp(prefix="logs-"))
    manage(var, "migrate", "--verbosity", "0")
    lab = RunningPortal(var)
    try:
        measure(lab, options.megabytes * MB, options.rate * MB)
    finally:
        lab.close()
        shutil.rmtree(var, ignore_errors=True)


def measure(lab: RunningPortal, total: int, rate: int) -> None:
    """Run one job. Return its rows."""
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    cookie = log_in(lab.address, "alice", PASSWORD)
    time.sleep(3)
    memory, frames = Memory(lab), Frames(lab)
    began = time.monotonic()
    job = lab.launch(SCRIPT.format(python=sys.executable, total=total, rate=rate))
    page, tail = Page(lab, job), Tail(lab.address, cookie, job)
    watches = (memory, frames, page, tail)
    for watch in watches:
        watch.start()
    lab.reaches(job, "running")
    began = time.monotonic()
    ended = lab.reaches(job, "done", "failed", "stopped", seconds=300)
    printed = time.monotonic() - began
    log = lab.folder(job) / "log"
    size = log.stat().st_size
    while len_of(lab, job) < size:
        assert time.monotonic() - began < 600, "the log did not come whole"
        time.sleep(0.2)
    whole = time.monotonic() - began
    row("job", f"{ended['state']}, {size / MB:.0f} MB")
    row("printed in, at the portal whole after", f"{printed:.1f} s, {whole:.1f} s")
    stored = lab.var / "media" / "logs" / f"{job}-1.log"
    row("the same bytes on both sides", str(sum_of(log) == sum_of(stored)))
    for watch in watches[1:3]:
        watch.stop()
    row("frames of the board, longest gap", f"{frames.longest():.2f} s")
    row(
        "the job's state over the API, p50 / p95 / worst",
        " / ".join(f"{1000 * part_of(page.took, q):.0f}" for q in (0.5, 0.95, 1))
        + " ms",
    )
    ages = " / ".join(f"{part_of(tail.ages, q):.2f}" for q in (0.5, 0.95, 1))
    row("age of what an open page is sent, p50 / p95 / worst", f"{ages} s")
    row("sent to that page in all", f"{tail.bytes / MB:.1f} MB")
    row("its last line is the log's", str(tail.last == "last line"))
    at_rest = memory.now()
    seconds, hits = search(lab, job, "last line")
    row("search of the whole log", f"{seconds:.1f} s, {hits} line")
    seconds, digest = download(lab, cookie, job)
    row("download of the whole log", f"{seconds:.1f} s")
    row("the same bytes again", str(digest == sum_of(log)))
    memory.stop()
    for name in PARTS:
        seen = (memory.first[name], memory.most[name], at_rest[name])
        mib = ", ".join(f"{value:.0f}" for value in seen)
        row(f"memory of {name}: before, most, after", f"{mib} MiB")


def len_of(lab: RunningPortal, job: int) -> int:
    """Return the bytes of the log at the portal."""
    path = lab.var / "media" / "logs" / f"{job}-1.log"
    return path.stat().st_size if path.exists() else 0


if __name__ == "__main__":
    main()
