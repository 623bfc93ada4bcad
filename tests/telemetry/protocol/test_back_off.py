"""Pauses between tries grow, stay at the last one, and begin again after a success."""

import pytest

from telemetry.protocol.back_off import BackOff, pause_after

pytestmark = pytest.mark.pure


def test_pauses_grow_to_the_last_one_and_begin_again() -> None:
    back_off = BackOff((0.5, 1.0, 2.0))
    assert [back_off.failed() for _ in range(5)] == [0.5, 1.0, 2.0, 2.0, 2.0]
    assert (back_off.failures, back_off.pause_seconds) == (5, 2.0)
    back_off.succeeded()
    assert (back_off.failures, back_off.pause_seconds) == (0, 0.0)
    assert back_off.failed() == 0.5


def test_jitter_multiplies_each_pause() -> None:
    seen = []

    def between(low: float, high: float) -> float:
        seen.append((low, high))
        return high

    back_off = BackOff((1.0, 10.0), jitter=(0.5, 1.5), between=between)
    assert [back_off.failed(), back_off.failed()] == [1.5, 15.0]
    assert seen == [(0.5, 1.5)] * 2


def test_without_jitter_a_pause_is_exact() -> None:
    assert BackOff((0.1,)).failed() == 0.1


def test_a_count_that_is_kept_elsewhere_gives_the_same_pauses() -> None:
    back_off = BackOff((60, 300, 1800))
    for failures in range(1, 6):
        assert pause_after((60, 300, 1800), failures) == back_off.failed()
