"""Distinguish a reloaded driver from a broken Gpu."""

import pytest

from telemetry.agent.probe.driver_reload import BACK_OFF_SECONDS, ReloadWatch

pytestmark = pytest.mark.pure

BOTH = {"GPU-1", "GPU-2"}


def test_one_gpu_that_fails_is_broken_and_not_a_reload() -> None:
    watch = ReloadWatch()
    watch.note("GPU-1", answered=False)
    watch.note("GPU-2", answered=True)
    watch.judge(BOTH)
    assert not watch.stale


def test_all_gpus_that_fail_at_once_are_a_reload() -> None:
    watch = ReloadWatch()
    watch.note("GPU-1", answered=False)
    watch.note("GPU-2", answered=False)
    watch.judge(BOTH)
    assert watch.stale


def test_failures_of_different_samples_do_not_add_up() -> None:
    watch = ReloadWatch()
    for failing, well in (("GPU-1", "GPU-2"), ("GPU-2", "GPU-1")):
        watch.note(failing, answered=False)
        watch.note(well, answered=True)
        watch.judge(BOTH)
    assert not watch.stale


def test_where_no_gpu_is_left_to_ask_only_starting_anew_tells() -> None:
    watch = ReloadWatch()
    watch.judge(set())
    assert watch.due(0.0)
    watch.note_try(0.0)
    watch.note_success()
    watch.judge(set())
    assert not watch.due(0.5)
    assert watch.due(1.0)


def test_tries_wait_longer_and_longer_until_a_gpu_answers() -> None:
    watch = ReloadWatch()
    watch.note_proof()
    at, waits = 0.0, []
    for _ in range(8):
        assert watch.due(at)
        watch.note_try(at)
        began_at = at
        while not watch.due(at):
            at += 0.5
        waits.append(at - began_at)
    assert waits == [*BACK_OFF_SECONDS, 30.0, 30.0]
    watch.note_success()
    assert not watch.stale
    watch.note("GPU-1", answered=True)
    watch.note_proof()
    watch.note_try(at)
    assert watch.due(at + 1.0)


def test_a_gpu_that_hangs_does_not_hide_a_reload() -> None:
    watch = ReloadWatch()
    for stale in (False, True):
        watch.note("GPU-2", answered=False)
        watch.judge(BOTH)
        assert (watch.stale, watch.urgent) == (stale, stale)


def test_a_sample_without_any_reading_proves_nothing() -> None:
    watch = ReloadWatch()
    watch.judge(BOTH)
    assert not watch.stale


def test_a_gpu_that_came_is_no_reason_to_hurry() -> None:
    watch = ReloadWatch()
    watch.note_proof(urgent=False)
    assert (watch.stale, watch.urgent) == (True, False)
    watch.note_proof()
    assert watch.urgent
    watch.note_success()
    assert (watch.stale, watch.urgent) == (False, False)
