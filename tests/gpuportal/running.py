"""A portal as a real process, in a separate folder, for tests that need one."""

import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from gpuportal.supervisor.kernel import send
from telemetry.proc_stat import read_stat

ROOT = Path(__file__).resolve().parents[2]
READY = "GPU Portal is ready: "


def environ_for(var: Path, **more: str) -> dict[str, str]:
    """Return the environment of a fresh checkout whose ``var`` is elsewhere."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("DATABASE_URL", "REDIS_URL", "SECRET_KEY")
        and not name.startswith(("GPUPORTAL_", "DJANGO_"))
    }
    return kept | {"GPUPORTAL_VAR": str(var), "PYTHONUNBUFFERED": "1"} | more


def manage(var: Path, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run one command of ``manage.py`` to its end."""
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=environ_for(var, **more),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def simulate(var: Path, node: str, gpus: int = 2) -> None:
    """Enrol a simulated node with idle Gpus."""
    done = manage(var, "enroll_node", node, "--simulated")
    assert done.returncode == 0, done.stderr
    write_simulation(var, node, gpus)


def write_simulation(var: Path, node: str, gpus: int) -> None:
    """Write the file that says which idle Gpus a simulated node has."""
    (var / "sim").mkdir(exist_ok=True)
    script = {"gpus": [_gpu(node, n) for n in range(gpus)], "fast_links": []}
    (var / "sim" / f"{node}.json").write_text(json.dumps({**script, "actors": []}))


def _gpu(node: str, index: int) -> dict[str, object]:
    return {
        "uuid": f"GPU-{node}-{index}",
        "index": index,
        "name": "NVIDIA A100 80GB PCIe",
        "gpu_class": "NVIDIA A100 80GB PCIe",
        "memory_total_bytes": 80 * 2**30,
        "power_limit_watts": 300.0,
        "slowdown_celsius": 90.0,
        "sm_clock_max_mhz": 1410,
        "pci_bus_id": f"0000:0{index}:00.0",
        "serial": "",
        "compute_capability": "8.0",
        "mig": False,
        "lost": False,
    }


class Portal:
    """``manage.py portal`` under test; use as a context."""

    def __init__(self, var: Path, *arguments: str, **more: str) -> None:
        self.var = var
        self._tag = hashlib.sha256(os.fsencode(var)).hexdigest()[:16].encode()
        self.lines: list[str] = []
        self._fresh: queue.Queue[str] = queue.Queue()
        self.process = subprocess.Popen(
            [sys.executable, "manage.py", "portal", "--port", "0", *arguments],
            cwd=ROOT,
            env=environ_for(var, **more),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> "Portal":
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(90)
        for pid in self.left():
            send(pid, signal.SIGKILL)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            self._fresh.put(line.rstrip())

    def until(self, text: str, seconds: float = 150.0) -> str:
        """Wait for a line with a text; return the line."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._fresh.get(timeout=max(0.05, deadline - time.monotonic()))
            except queue.Empty:
                said = "\n".join(self.lines)
                raise AssertionError(f"no {text!r} in:\n{said}") from None
            if text in line:
                return line

    def ready(self) -> str:
        """Wait for the address and return it, without the slash."""
        return self.until(READY).partition(READY)[2].split()[0].rstrip("/")

    def left(self) -> dict[int, str]:
        """Return every live process that has this portal's folder."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdecimal() or int(entry.name) == os.getpid():
                continue
            try:
                known = (entry / "environ").read_bytes()
                words = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            # Valkey writes its title over its environment, but the title names the
            # socket: below the folder, or beside it if its path is long.
            marks = (str(self.var).encode(), self._tag)
            if any(mark in known + words for mark in marks) and state not in "ZX":
                found[int(entry.name)] = words.replace(b"\0", b" ").decode()
        return found

    def parent_of(self, pid: int) -> int | None:
        """Return the parent of a process; None where it has ended."""
        found = read_stat(pid)
        return found.ppid if found else None

    def gone(self, seconds: float) -> dict[int, str]:
        """Wait until nothing is left. Return what remains."""
        deadline = time.monotonic() + seconds
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return left


def status_of(url: str) -> int:
    """Return the HTTP status of a page."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
