"""Driver values that cannot be true."""

import pytest

from telemetry.agent.probe import plausible
from telemetry.protocol.sample import Throttle

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("garbage", [255, 2**32 - 1, -1])
def test_garbage_becomes_cannot_say(garbage: int) -> None:
    assert plausible.plausible_integer(garbage, 100) is None
    assert plausible.plausible_integer(100, 100) == 100
    assert plausible.plausible_integer(0, 100) == 0


def test_milliwatts_become_watts_and_garbage_becomes_none() -> None:
    assert plausible.scaled(250_449, 10_000, per_unit=1000) == 250.4
    assert plausible.scaled(2**32 - 1, 10_000, per_unit=1000) is None
    assert plausible.scaled(None, 10_000, per_unit=1000) is None


def test_every_documented_reason_has_a_word_and_no_other_bit_has() -> None:
    assert plausible.throttle_reasons((1 << 64) - 1) == tuple(Throttle)
    assert plausible.throttle_reasons(0) == ()
    assert plausible.throttle_reasons(None) is None


def test_the_bits_are_those_of_the_bindings() -> None:
    import pynvml

    for bit, word in plausible.THROTTLE_BITS:
        camel = {
            Throttle.APPLICATIONS_CLOCKS: "ApplicationsClocksSetting",
            Throttle.SW_THERMAL: "SwThermalSlowdown",
            Throttle.HW_THERMAL: "HwThermalSlowdown",
            Throttle.HW_POWER_BRAKE: "HwPowerBrakeSlowdown",
            Throttle.DISPLAY_CLOCK: "DisplayClockSetting",
        }.get(word, "".join(x.capitalize() for x in word.value.split("_")))
        assert getattr(pynvml, f"nvmlClocksEventReason{camel}") == bit
