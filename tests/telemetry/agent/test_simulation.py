"""Simulated Gpus behave like Gpus, and the same every time."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.agent.simulation import (
    SimulatedProcess,
    heat_pct,
    reading,
    smooth_noise,
    total_pct,
)
from telemetry.protocol.hardware import GpuInfo
from telemetry.protocol.sample import NodeSample, Throttle

pytestmark = pytest.mark.pure

INFO = GpuInfo(
    uuid="GPU-1",
    index=0,
    name="Simulated A100",
    gpu_class="A100",
    memory_total_bytes=80 * 2**30,
    power_limit_watts=400.0,
    slowdown_celsius=90.0,
    sm_clock_max_mhz=1410,
)
TRAIN = SimulatedProcess(
    gpu="GPU-1",
    pid=40_000,
    memory_bytes=40 * 2**30,
    util_pct=90.0,
    wobble_pct=5.0,
    from_at=1000.0,
    until_at=2000.0,
)


def at(moment: float, *loads: SimulatedProcess):
    return reading(INFO, loads, at=moment, seed="1")


def test_an_idle_gpu_is_cool_slow_and_nearly_empty() -> None:
    idle = at(500.0, TRAIN)
    assert (idle.util_pct, idle.pstate) == (0, 8)
    assert idle.memory_used_bytes < 2**30
    assert idle.temperature_celsius < 40
    assert 30 < idle.power_watts < 80
    assert idle.throttle == (Throttle.GPU_IDLE,)


def test_load_shows_at_once_power_within_seconds_and_heat_within_a_minute() -> None:
    just, soon, later = (at(moment, TRAIN) for moment in (1004.5, 1015.0, 1200.0))
    assert 80 <= just.util_pct <= 100
    assert just.power_watts < soon.power_watts
    assert just.temperature_celsius < soon.temperature_celsius
    assert soon.temperature_celsius < later.temperature_celsius
    assert 300 < later.power_watts <= 400
    assert later.memory_used_bytes >= 40 * 2**30
    assert later.sm_clock_mhz > 1200


def test_it_cools_down_slowly_after_the_end() -> None:
    ended, cold = at(2002.0, TRAIN), at(2300.0, TRAIN)
    assert (ended.util_pct, ended.memory_used_bytes) == (0, cold.memory_used_bytes)
    assert ended.temperature_celsius > cold.temperature_celsius + 20


def test_temperature_never_jumps() -> None:
    degrees = [at(990.0 + n, TRAIN).temperature_celsius for n in range(1100)]
    assert max(abs(a - b) for a, b in pairwise(degrees)) <= 3


def test_the_same_instant_gives_the_same_reading() -> None:
    assert at(1500.0, TRAIN) == at(1500.0, TRAIN)
    other = reading(INFO, [TRAIN], at=1500.0, seed="2")
    assert other != at(1500.0, TRAIN)


def test_utilization_wobbles_like_a_training_run() -> None:
    told = [at(1100.0 + n, TRAIN).util_pct for n in range(120)]
    assert 3 <= max(told) - min(told) <= 15


loads = st.builds(
    SimulatedProcess,
    gpu=st.just("GPU-1"),
    pid=st.integers(1, 99),
    memory_bytes=st.integers(0, 2**38),
    util_pct=st.floats(0, 100),
    wobble_pct=st.floats(0, 100),
    from_at=st.floats(0, 2000),
    until_at=st.none() | st.floats(0, 2000),
)


@given(st.lists(loads, max_size=4), st.floats(0, 3000))
def test_whatever_the_script_says_the_portal_takes_the_readings(script, moment) -> None:
    told = reading(INFO, script, at=moment, seed="1")
    sample = NodeSample(node="n", at=moment, gpus=(told,))
    assert NodeSample.from_message(sample.to_message(), node="n") == sample
    assert 0 <= total_pct(script, moment, "1") <= 100
    assert 0 <= heat_pct(script, moment) <= 100


@given(st.floats(0, 1e6))
def test_the_wobble_is_smooth_and_bounded(moment: float) -> None:
    here, soon = smooth_noise("k", moment, 20.0), smooth_noise("k", moment + 0.1, 20.0)
    assert -1 <= here <= 1
    assert abs(here - soon) < 0.05
