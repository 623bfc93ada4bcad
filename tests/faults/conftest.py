"""Separate nodes, small disks, and clocks that can be set."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from celery import current_app
from django.utils import timezone

import gpuportal.celery
from placement.agent.job_folder import JobFolder
from placement.agent.local_runner import LocalRunner
from placement.jobs import service as jobs
from placement.models import Job
from placement.protocol.commands import Order
from reservations.booking.service import book
from reservations.models import Reservation
from tests.factories import make_gpus, make_node
from tests.faults.running_portal import RunningPortal
from tests.placement import nodes
from tests.placement.conftest import (  # noqa: F401  (fixtures, by name)
    marker,
    near,
    node,
    serve,
)

assert current_app.main == gpuportal.celery.app.main
DISK_BYTES = 2**20
# The real shim, under a wall clock with the offset in a file.
SHIM = """
import sys, time
from pathlib import Path
real, jump = time.time, Path(sys.argv[2])
time.time = lambda: real() + float(jump.read_text())
from placement.agent.process import shim
sys.exit(shim.main(["shim", sys.argv[1]]))
"""


@pytest.fixture(scope="package")
def running_portal(make_database: Callable[[Path], None]) -> Iterator[RunningPortal]:
    """One running portal for all tests that kill a part of it."""
    with tempfile.TemporaryDirectory(prefix="gpf-") as folder:
        make_database(Path(folder) / "db.sqlite3")
        made = RunningPortal(Path(folder))
        yield made
        made.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one mebibyte."""
    path = tmp_path / "small"
    path.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=711", "tmpfs"]
    done = subprocess.run(
        ["mount", *options, str(path)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        reason = f"a small disk needs the right to mount: {done.stderr.strip()}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    yield path
    # Jobs of a test that failed would go on where nobody sees their folders.
    nodes.end_all_jobs(path / "node")
    subprocess.run(["umount", "--lazy", str(path)], check=True)


class Clock:
    """Starts shims whose node's wall clock is off."""

    def __init__(self, settings: nodes.NodeSettings, folder: Path) -> None:
        self.settings = settings
        self.file = folder / "clock"
        self.set(0)

    def set(self, seconds: float) -> None:
        """Set the clock off by so much."""
        draft = self.file.with_suffix(".new")
        draft.write_text(str(seconds))
        draft.replace(self.file)

    def start(self, order: Order, web: nodes.Web | None = None) -> JobFolder:
        """Accept an order and start a shim that reads this clock."""
        settings = replace(self.settings, web_url=web.url if web else "")
        folder = LocalRunner(settings).accept(order, order.payload())
        subprocess.run(
            [sys.executable, "-c", SHIM, str(folder.path), str(self.file)],
            env={
                "GPUPORTAL_WEB_URL": settings.web_url,
                "GPUPORTAL_NODE_TOKEN_FILE": str(settings.token_file),
                "GPUPORTAL_ALLOW_SCRIPTS": "1",
                "PATH": os.environ["PATH"],
            },
            check=True,
            timeout=20,
        )
        return folder


@pytest.fixture
def clock(node, tmp_path: Path) -> Clock:  # noqa: F811
    """A clock that can be set."""
    return Clock(node, tmp_path)


@pytest.fixture
def job(alice, redis_client) -> Job:
    """A waiting Job of Alice, in a running Reservation, with Alice present."""
    now = timezone.now()
    row = make_node("red", last_seen_at=now)
    held = book(
        user=alice,
        membership=None,
        gpu_ids=[gpu.pk for gpu in make_gpus(1, row)],
        start=now,
        end=now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=6),
        now=now,
    )
    Reservation.objects.filter(pk=held.pk).update(checked_in_at=now)
    return jobs.launch(
        user=alice,
        reservation_id=held.pk,
        name="try",
        kind="recipe",
        recipe="burn-in",
        now=now,
    )
