"""Thresholds that cannot be meant are refused, with the field."""

import pytest

from telemetry.rules.policy_declaration import (
    PolicyInvalid,
    parse_codes,
    parse_names,
)
from telemetry.rules.thresholds import JudgePolicy

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"least_samples": 1}, "least_samples"),
        ({"silent_after_seconds": 5}, "silent_after_seconds"),
        ({"thermal_after_seconds": -1}, "thermal_after_seconds"),
        ({"zombie_memory_mib": -1}, "zombie_memory_mib"),
        ({"xid_warning": (79,)}, "xid_warning"),
        ({"xid_critical": (0,)}, "xid_critical"),
        ({"whitelist": ("*",)}, "whitelist"),
        ({"whitelist": ("x" * 61,)}, "whitelist"),
        ({"whitelist": tuple(f"p{n}" for n in range(101))}, "whitelist"),
        ({"warn_after_seconds": 60, "stop_after_seconds": 59}, "stop_after_seconds"),
    ],
)
def test_a_threshold_that_cannot_be_meant_names_its_field(values, field):
    with pytest.raises(PolicyInvalid) as refused:
        JudgePolicy(**values)
    assert refused.value.field == field


def test_codes_and_names_are_read_as_people_write_them():
    assert parse_codes("62, 48  48", field="xid_critical") == (48, 62)
    assert parse_names(" Xorg\n\nnvtop \nXorg") == ("Xorg", "nvtop")
    with pytest.raises(PolicyInvalid):
        parse_codes("48 sixty", field="xid_critical")
