"""State words and their codes, which browsers of older versions know too."""

import pytest

from telemetry.protocol.gpu_state import WORDS, GpuState, state_of_code

pytestmark = pytest.mark.pure


def test_codes_never_change_and_are_never_used_again() -> None:
    assert {state.name: state.value for state in GpuState} == {
        "UNKNOWN": 0,
        "FREE": 1,
        "RESERVED": 2,
        "BUSY": 3,
        "IDLE": 4,
        "INTRUDER": 5,
        "SQUATTER": 6,
        "STALE": 7,
        "LOST": 8,
        "MAINTENANCE": 9,
        "THROTTLED": 10,
        "FOREIGN": 11,
        "MIG": 12,
    }


def test_every_state_has_a_word_of_its_own() -> None:
    assert set(WORDS) == set(GpuState)
    assert len(set(WORDS.values())) == len(GpuState)


def test_an_unheard_code_is_unknown_and_not_an_error() -> None:
    assert state_of_code(255) is GpuState.UNKNOWN
    assert state_of_code(5) is GpuState.INTRUDER
