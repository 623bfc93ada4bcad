"""Joules between samples: by the counter, by power, never backwards."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.protocol.sample import GpuAnswer, GpuReading
from telemetry.rules.energy import COUNTER_GAP_SECONDS, EnergyMeter, EnergyMeters

pytestmark = pytest.mark.pure


def metered(*samples: tuple[float, float | None, float | None]) -> list[float | None]:
    """What a meter tells of samples (at, counter, watts)."""
    meter = EnergyMeter()
    return [
        meter.joules_since_last(at, counter_joules=c, power_watts=w)
        for at, c, w in samples
    ]


def test_the_counter_tells_by_its_differences() -> None:
    told = metered((10, 5000.0, 300), (11, 5250.0, 300), (12, 5600.0, 300))
    assert told == [300.0, 250.0, 350.0]


def test_without_a_counter_power_is_added_up_over_the_time_that_passed() -> None:
    assert metered((0, None, 100), (2, None, 300), (3, None, 300)) == [100, 400, 300]


def test_a_driver_reload_makes_no_negative_energy() -> None:
    told = metered((10, 9000.0, 200), (11, 9200.0, 200), (12, 50.0, 210))
    assert told == [200.0, 200.0, 205.0]
    assert metered((10, 9000.0, None), (11, 50.0, None), (12, 90.0, None)) == [
        None,
        None,
        40.0,
    ]


def test_a_counter_that_leaps_is_not_believed() -> None:
    assert metered((10, 0.0, 200), (11, 1e12, 200))[1] == 200.0


def test_a_counter_that_skips_a_sample_tells_it_later_and_nothing_twice() -> None:
    told = metered((0, 100.0, 80), (1, None, 80), (2, None, 80), (3, 340.0, 80))
    assert told == [80.0, None, None, 240.0]


def test_a_long_hole_stays_a_hole() -> None:
    far = COUNTER_GAP_SECONDS + 5
    assert metered((0, 0.0, 100), (far, 9000.0, 100))[1] == 100.0
    assert metered((0, None, 100), (600, None, 100))[1] == 100.0


def test_a_card_that_can_say_neither_has_no_energy() -> None:
    assert metered((0, None, None), (1, None, None)) == [None, None]


def test_a_sample_from_before_the_last_one_counts_nothing() -> None:
    assert metered((5, 100.0, 50), (4, 90.0, 50), (6, 150.0, 50)) == [50.0, None, 50.0]


def test_a_gpu_that_does_not_answer_is_not_metered_and_one_that_left_is_forgotten():
    meters = EnergyMeters()
    well = GpuReading(uuid="GPU-1", energy_joules=100.0)
    assert meters.joules_since_last(1, 0.0, well) is None
    hung = GpuReading(uuid="GPU-1", state=GpuAnswer.HUNG)
    assert meters.joules_since_last(1, 1.0, hung) is None
    more = GpuReading(uuid="GPU-1", energy_joules=130.0)
    assert meters.joules_since_last(1, 2.0, more) == 30.0
    meters.keep_only([])
    assert (
        meters.joules_since_last(1, 3.0, GpuReading(uuid="GPU-1", energy_joules=999.0))
        is None
    )


STEPS = st.lists(
    st.tuples(
        st.floats(0.5, 2.5),
        st.none() | st.floats(0, 1e6),
        st.none() | st.floats(0, 700),
    ),
    max_size=20,
)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_energy_is_never_negative_whatever_the_card_says(steps) -> None:
    meter, at = EnergyMeter(), 0.0
    for passed, counter, watts in steps:
        at += passed
        told = meter.joules_since_last(at, counter_joules=counter, power_watts=watts)
        assert told is None or told >= 0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(1, 900), min_size=1, max_size=30))
def test_the_counter_s_differences_add_up_to_what_it_counted(joules) -> None:
    """Readings that come each second: the sum is end minus begin."""
    counter, samples = 1000.0, [(0.0, 1000.0, None)]
    for second, more in enumerate(joules, 1):
        counter += more
        samples.append((float(second), counter, None))
    told = [x for x in metered(*samples) if x is not None]
    assert sum(told) == pytest.approx(counter - 1000.0)
