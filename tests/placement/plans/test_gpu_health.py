"""Telemetry's findings about a Gpu, and their effect in placement."""

import pytest

from placement.plans.gpu_health import WELL, health_of
from reservations.rules.booking_alerts import INTRUDER
from telemetry.rules.alert_rules import (
    ECC,
    REMAP_FAILURE,
    REMAP_PENDING,
    THERMAL,
    WEDGED,
    XID_CRITICAL,
    XID_WARNING,
)

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("rule", [ECC, XID_CRITICAL, REMAP_FAILURE, WEDGED])
def test_what_would_kill_a_job_keeps_the_gpu_out(rule):
    assert rule in health_of([rule]).unusable
    assert rule in health_of([rule], later=True).unusable


@pytest.mark.parametrize("rule", [REMAP_PENDING, XID_WARNING])
def test_what_a_job_survives_is_told(rule):
    assert health_of([rule]).troubles == (rule,)
    assert not health_of([rule]).unusable


def test_what_people_do_wrong_is_not_the_gpus_trouble():
    assert health_of([INTRUDER]) == WELL


def test_heat_is_over_by_a_later_start():
    hot = {"throttle": ["hw_thermal"], "sm_clock_mhz": 300, "sm_clock_max_mhz": 1500}

    assert health_of([THERMAL], **hot).speed_ratio == pytest.approx(0.2)
    assert health_of([THERMAL], **hot, later=True) == WELL


def test_a_power_cap_or_an_idle_clock_is_no_trouble():
    calm = {"sm_clock_mhz": 210, "sm_clock_max_mhz": 1500}

    assert health_of([], throttle=["gpu_idle", "sw_power_cap"], **calm) == WELL


def test_a_clock_is_never_taken_for_less_than_a_tenth():
    slow = {"throttle": ["hw_slowdown"], "sm_clock_mhz": 1, "sm_clock_max_mhz": 1500}

    assert health_of([], **slow).speed_ratio == pytest.approx(0.1)
