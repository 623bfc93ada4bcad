"""The tick that follows running Jobs."""

import os

import pytest
from django.utils import timezone

from placement.jobs.nodes import log_store
from placement.jobs.tick import progress_tick
from placement.models import Job
from tests.factories import make_node, make_reservation


@pytest.fixture
def jobs(alice):
    reservation, node = make_reservation(alice), make_node()
    return [
        Job.objects.create(
            reservation=reservation,
            owner=alice,
            node=node,
            name=name,
            kind="recipe",
            attempt=1,
            state=Job.State.RUNNING,
        )
        for name in ("long", "short")
    ]


def write(job, count):
    lines = b"".join(b"step=%d loss=1.0\n" % n for n in range(count))
    log_store.append(job, attempt=1, offset=log_store.size(job), data=lines)
    return len(lines)


def test_logs_that_have_grown_are_read_for_numbers_the_short_ones_first(
    jobs, monkeypatch
):
    long, short = jobs
    held = write(long, 400), write(short, 10)
    monkeypatch.setattr(log_store, "NUMBERS_BLOCK_BYTES", 256)
    monkeypatch.setattr(log_store, "SCAN_BYTES", held[1] + held[0] // 2)
    assert progress_tick.run_steps(timezone.now())["numbers"] == 2
    assert log_store.numbers(short, 0).left_bytes == 0
    first = log_store.numbers(long, 0)
    assert first.rows and 0 < first.left_bytes <= held[0] // 2
    progress_tick.run_steps(timezone.now())
    assert log_store.numbers(long, 0).left_bytes == 0


def test_a_log_that_has_not_grown_is_not_read_again(jobs, monkeypatch):
    write(jobs[0], 3)
    progress_tick.run_steps(timezone.now())
    path = log_store.path_of(jobs[0])
    kept = path.with_suffix(".numbers.json")
    at = path.stat().st_mtime + 1
    os.utime(kept, (at, at))
    monkeypatch.setattr(log_store, "numbers", None)
    assert progress_tick.run_steps(timezone.now())["numbers"] == 0
