"""The rules as one value: the defaults, and no value that breaks the site.

See docs/design/fair-booking.md#defaults.
"""

import math
from dataclasses import fields

import pytest

from reservations.rules.fairness.fair_tree import weight_at
from reservations.rules.policy import Policy
from telemetry.rules.policy_declaration import PolicyInvalid, rules_of

HOUR, DAY = 3600, 86_400
NUMBERS = [f.name for f in fields(Policy) if f.type in ("int", "float")]
LIMITS = {rule.name: (rule.least, rule.most) for rule in rules_of(Policy)}


def test_the_defaults_are_those_of_the_policy() -> None:
    """docs/design/fair-booking.md#defaults."""
    policy = Policy()
    assert (policy.grid_seconds, policy.longest_seconds) == (HOUR, 24 * HOUR)
    assert policy.firm_horizon_seconds == 14 * DAY
    assert policy.flex_horizon_seconds == 3 * DAY
    assert policy.freeze_seconds == 12 * HOUR
    assert (policy.gpus_at_once, policy.live_reservations) == (4, 6)
    assert policy.future_flex == 2
    assert policy.quota_gpu_seconds == 40 * HOUR * 10, "80 GiB in units of 8"
    assert policy.half_life_seconds == 14 * DAY
    assert policy.late_return_permille == 500
    assert (policy.no_show_seconds, policy.idle_seconds) == (15 * 60, 30 * 60)
    assert policy.idle_util_pct == 3
    assert (policy.strike_no_shows, policy.strike_window_seconds) == (3, 30 * DAY)
    assert policy.strike_horizon_seconds == 48 * HOUR
    assert policy.strike_seconds == 14 * DAY
    assert policy.overstay_notice_seconds == 10 * 60
    assert (policy.planned_requests, policy.look_again_seconds) == (5, 60)


@pytest.mark.parametrize("name", sorted(set(NUMBERS) - {"version"}))
def test_every_number_has_limits_that_hold(name) -> None:
    least, most = LIMITS[name]
    for bad in (least - 1, most + 1, math.nan, math.inf, -math.inf):
        with pytest.raises(PolicyInvalid) as invalid:
            Policy(**{name: bad})
        assert invalid.value.field == name
    assert least <= getattr(Policy(), name) <= most


def test_a_grid_divides_the_day_and_a_horizon_the_other() -> None:
    with pytest.raises(PolicyInvalid, match="does not divide a day"):
        Policy(grid_seconds=7 * 60)
    with pytest.raises(PolicyInvalid, match="beyond the firm horizon"):
        Policy(flex_horizon_seconds=15 * DAY)
    with pytest.raises(PolicyInvalid, match="longest_seconds"):
        Policy(longest_seconds=HOUR // 2)


def test_the_shortest_half_life_still_makes_small_weights() -> None:
    least, _most = LIMITS["half_life_seconds"]
    assert weight_at(2_000_000_000, int(least)).bit_length() < 6000
