"""A storm of driver faults over a whole node, for any length of time.

    python -m bench.storm [--minutes 60] [--seed 1]

A real node worker (Celery, with its sampling child) over the simulated driver of the
tests, a real ingest, and a separate broker and database. Faults of `rig/storm_load.py`
come in a random order, round after round. The binary frames are observed, as a page
would. It prints a line a minute, and in the end whether

- no process died (ingest and node worker are the same all the time, the sampling child
  is there and all 8 Gpus are read again),
- memory stayed flat: of each process, the most of the last quarter against the most of
  the second one (the first one is for warming up), within 5 %,
- the log stayed under 100 lines a minute,
- healthy Gpus were never older than 2 s.

The exit code is 1 if one of these fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from bench.rig.cluster import ROOT, cpu_seconds, setup, valkey
from bench.rig.storm_load import EVERY, Storm, rss_kib

NODE = "storm"
WARM_UP_SECONDS = 15.0
SETTLE_SECONDS = 20.0
MOST_AGE_SECONDS = 2.0
NOTICE_SECONDS = 0.5
MOST_LINES_A_MINUTE = 100.0
MEMORY_RATIO = 1.05


class Page(threading.Thread):
    """Reads the frames that browsers get, and reports healthy Gpus to the storm."""

    def __init__(self, url: str, storm: Storm) -> None:
        super().__init__(daemon=True)
        self._url, self._storm = url, storm
        self._over = threading.Event()
        self._frames: list[bytes] = []
        self._roster: tuple[int, dict[int, int]] | None = None
        self._slots: dict[str, int] = {}
        self._told = 0.0
        self.frames = 0
        self.oldest: tuple[float, str] = (0.0, "")
        """Largest age of a healthy Gpu's row in seconds, and the fault at that time."""

    def run(self) -> None:
        """Take frames as they come. `look` reads them."""
        import redis

        client = redis.Redis.from_url(self._url)
        with client.pubsub(ignore_subscribe_messages=True) as link:
            link.subscribe("telemetry.frame")
            while not self._over.is_set():
                message = link.get_message(timeout=0.5)
                if message is not None:
                    self._frames.append(message["data"])

    def close(self) -> None:
        """End the thread."""
        self._over.set()
        self.join(5)

    def look(self) -> None:
        """Process the frames since the last look."""
        from telemetry.protocol.frame import decode

        frames, self._frames = self._frames, []
        for data in frames:
            frame = decode(data)
            self.frames += 1
            rows = self._rows_of(frame.roster_id)
            for number, row in enumerate(frame.rows):
                if number in rows:
                    self._see(rows[number], row)
        self._tell_gap()

    def _tell_gap(self) -> None:
        """Print one line if the worst gap grew: the fault, the Gpu, the load."""
        gap, fault = self._storm.healthy.worst_gap
        if gap > max(self._told + 0.5, MOST_AGE_SECONDS):
            self._told = gap
            load = os.getloadavg()[0]
            print(f"  gap of {gap:.1f} s in {fault!r}, load {load:.1f}", flush=True)

    def _see(self, slot: int, row: Any) -> None:
        healthy, now = self._storm.healthy, time.monotonic()
        since = healthy.recovering.get(slot)
        # A frame repeats the last reading, so one from before the change is no news.
        if since is not None and now - row.age_seconds <= since + NOTICE_SECONDS:
            return
        good = row.util_pct is not None and row.age_seconds <= MOST_AGE_SECONDS
        healthy.saw(slot, now, good=good)
        if slot not in healthy.touched | healthy.recovering.keys():
            self.oldest = max(self.oldest, (row.age_seconds, healthy.fault))

    def _rows_of(self, roster_id: int) -> dict[int, int]:
        """Return row number -> slot, of the storm's Gpus."""
        import redis

        if self._roster is None or self._roster[0] != roster_id:
            told = json.loads(
                redis.Redis.from_url(self._url).get("telemetry.roster") or b"{}"
            )
            if told.get("roster_id") != roster_id:
                return {}
            by_index = sorted(told["gpus"], key=lambda gpu: gpu["index"])
            for gpu in by_index if not self._slots else ():
                self._slots[gpu["uuid"]] = len(self._slots)
            rows = {
                number: self._slots[gpu["uuid"]]
                for number, gpu in enumerate(told["gpus"])
                if gpu["uuid"] in self._slots
            }
            self._roster = (roster_id, rows)
        return self._roster[1]


class Processes:
    """The processes of the storm: their memory, their CPU, their log."""

    def __init__(self, folder: Path, sim_env: dict[str, str]) -> None:
        self._log = folder / "log"
        self._env = {**os.environ, **sim_env, **_node_env(folder)}
        self._file = self._log.open("w")
        self.ingest = self._start("manage.py", "ingest")
        self.node = self._start(
            *("-m", "celery", "-A", "gpuportal.node", "worker", "-Q", f"node.{NODE}"),
            *("-n", f"node-{NODE}@%h", "--pool", "prefork", "-c", "1", "-l", "INFO"),
        )
        self.rss: dict[str, list[tuple[float, int]]] = defaultdict(list)
        self.children: list[int] = []

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env=self._env,
            stdout=self._file,
            stderr=subprocess.STDOUT,
        )

    def measure(self) -> None:
        """Record the memory of all processes now."""
        now, child = time.monotonic(), _sampling_child(self.node.pid)
        if child and child not in self.children:
            self.children.append(child)
        pids = {"ingest": self.ingest.pid, "node worker": self.node.pid}
        # A new child is another process, and is compared with children of its age.
        pids |= {"sampling child": child} if child else {}
        for name, pid in pids.items():
            kib = rss_kib(pid)
            if kib:
                self.rss[name].append((now, kib))

    def growth(self) -> dict[str, float]:
        """Return the most memory of the last quarter over the most of the second
        one.
        """
        ratios = {}
        for name, seen in self.rss.items():
            began, ended = seen[0][0], seen[-1][0]
            quarter = (ended - began) / 4
            second = [
                x for at, x in seen if began + quarter <= at < began + 2 * quarter
            ]
            last = [x for at, x in seen if at >= ended - quarter]
            ratios[name] = max(last) / max(second) if second and last else float("nan")
        return ratios

    def lines(self) -> int:
        """Return the number of lines in the log."""
        with self._log.open("rb") as file:
            return sum(1 for _ in file)

    def tail(self, count: int = 12) -> str:
        """Return the last lines of the log."""
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-count:])

    def close(self) -> None:
        """End the started processes."""
        for process in (self.node, self.ingest):
            process.terminate()
        for process in (self.node, self.ingest):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._file.close()


def _sampling_child(node_pid: int) -> int | None:
    """Return the node worker's sampling child, found by its command line."""
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
            parent = int((folder / "stat").read_text().rpartition(") ")[2].split()[1])
        except (OSError, IndexError, ValueError):
            continue
        if parent == node_pid and b"telemetry.agent.sampler" in words:
            return int(folder.name)
    return None


def _node_env(folder: Path) -> dict[str, str]:
    from django.conf import settings

    return {
        "GPUPORTAL_NODE": NODE,
        "GPUPORTAL_NODE_REDIS_URL": settings.REDIS_URL,
        "GPUPORTAL_WEB_URL": "http://127.0.0.1:1",
        "GPUPORTAL_NODE_TOKEN_FILE": str(folder / "token"),
        "GPUPORTAL_ORDER_KEY_FILE": str(folder / "order_key.pub"),
        "GPUPORTAL_NODE_DIR": str(folder / "node"),
        "GPUPORTAL_BACKEND": "nvml",
        "GPUPORTAL_SUPERVISOR_PID": str(os.getpid()),
    }


def _prepare(folder: Path) -> None:
    """Make a database with one node in it, and the node's secrets."""
    from django.core.management import call_command
    from django.utils import timezone

    from placement.protocol import signing
    from telemetry.inventory.enrollment import enroll_node

    call_command("migrate", verbosity=0)
    _node, token = enroll_node(name=NODE, simulated=False, now=timezone.now())
    (folder / "token").write_text(token)
    (folder / "order_key.pub").write_text(signing.public_key_pem())


def blow(minutes: float, storm: Storm, page: Page, processes: Processes) -> float:
    """Run the storm. Return the seconds that it took."""
    began_at = said_at = time.monotonic()
    while time.monotonic() - began_at < minutes * 60:
        for _fault in storm.round(page.look, shuffled=True):
            processes.measure()
            now = time.monotonic()
            if now - said_at >= 60:
                said_at = now
                _say(now - began_at, storm, page, processes)
            if now - began_at >= minutes * 60:
                break
    took_seconds = time.monotonic() - began_at
    storm.settle(SETTLE_SECONDS, page.look)
    processes.measure()
    return took_seconds


def _say(seconds: float, storm: Storm, page: Page, processes: Processes) -> None:
    mib = {name: seen[-1][1] / 1024 for name, seen in processes.rss.items()}
    told = ", ".join(f"{name} {size:.0f} MiB" for name, size in mib.items())
    print(
        f"{seconds / 60:4.0f} min  worst gap {storm.healthy.worst_gap[0]:.1f} s, "
        f"{processes.lines()} log lines, {len(processes.children)} children, {told}",
        flush=True,
    )


def judge(
    took_seconds: float, storm: Storm, page: Page, processes: Processes
) -> list[tuple[str, str, bool]]:
    """Return each check, its result, and whether it passed."""
    healthy = storm.healthy
    lost = healthy.recovering.keys() & EVERY
    alive = processes.ingest.poll() is None and processes.node.poll() is None
    alive = alive and _sampling_child(processes.node.pid) is not None
    gap, during = healthy.worst_gap
    age, fault = page.oldest
    # Frames come once a second, so a Gpu that is 2 s old was seen up to 3 s ago.
    lines = processes.lines() / (took_seconds + SETTLE_SECONDS + WARM_UP_SECONDS) * 60
    rows = [
        ("processes alive at the end", "all" if alive else "NOT all", alive),
        ("Gpus read again at the end", f"{GPUS - len(lost)} of {GPUS}", not lost),
        (
            "oldest healthy Gpu in a frame",
            f"{age:.1f} s ({fault})",
            age <= MOST_AGE_SECONDS,
        ),
        (
            "longest without a fresh row",
            f"{gap:.1f} s ({during})",
            gap <= MOST_AGE_SECONDS + 1,
        ),
        (
            "slowest recovery",
            "{:.1f} s ({})".format(*healthy.worst_recovery),
            True,
        ),
        ("log lines a minute", f"{lines:.0f}", lines <= MOST_LINES_A_MINUTE),
    ]
    for name, ratio in processes.growth().items():
        rows.append((f"memory of {name}", f"x {ratio:.3f}", ratio <= MEMORY_RATIO))
    return rows


GPUS = len(EVERY)


def main() -> int:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(description="A storm of driver faults.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuportal-storm-") as name:
        folder = Path(name)
        setup(name)
        from django.conf import settings

        from telemetry import paths
        from tests.nvml_sim.nvmlsim import Sim

        with valkey(paths.embedded_socket()), Sim(GPUS, model="a100") as sim:
            _prepare(folder)
            storm = Storm(sim.rewrite, seed=options.seed)
            page = Page(settings.REDIS_URL, storm)
            page.start()
            processes = Processes(folder, sim.env())
            try:
                storm.settle(WARM_UP_SECONDS, page.look)
                took_seconds = blow(options.minutes, storm, page, processes)
                rows = judge(took_seconds, storm, page, processes)
                cpu = cpu_seconds(processes.ingest.pid), cpu_seconds(processes.node.pid)
            finally:
                page.close()
                processes.close()
                storm.close()
            print(f"\n{platform.machine()}, {os.cpu_count()} cores, load", end=" ")
            print(f"{os.getloadavg()[0]:.1f}; {took_seconds / 60:.1f} min of storm, ")
            print(
                f"{storm.rounds} rounds, {len(processes.children)} sampling children,"
            )
            print(f"CPU s: ingest {cpu[0]:.0f}, node worker {cpu[1]:.0f}\n")
            print("| what | found | holds |\n| --- | --- | --- |")
            for what, found, holds in rows:
                print(f"| {what} | {found} | {'yes' if holds else 'NO'} |")
            good = all(holds for _, _, holds in rows)
            if not good:
                print(f"\n{processes.tail()}", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
