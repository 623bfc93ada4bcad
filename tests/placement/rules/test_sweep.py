"""Allowed sweeps, and the Jobs that they give."""

import pytest

from placement.planner.values.errors import LaunchInvalid
from placement.rules.sweep import checked_sweep, combinations, read_sweep


def test_every_combination_of_what_was_typed_runs_once():
    sweep = read_sweep("lr = 0.1, 0.01\n\nlayers=2,4,8\noptimizer = adam")
    rows = combinations(sweep)
    assert len(rows) == 6 and len({str(row) for row in rows}) == 6
    assert rows[1] == {"lr": 0.1, "layers": 4, "optimizer": "adam"}
    assert combinations(read_sweep(" \n")) == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lr 0.1", "line 1 has no '='"),
        ("a=1\na=2", "line 2 names a again"),
        ("A=1", "not a valid"),
        ("a=1,1", "twice"),
        ("a=", "1 to 120"),
        ("a=1,,2", "1 to"),
        ("a=inf", "not a number"),
        ("a=nan", "not a number"),
        ("a=" + "x" * 200, "1 to 120"),
        ("a=" + ",".join(map(str, range(101))), "more than 100"),
        ("\n".join(f"a{n}=1" for n in range(9)), "at most 8"),
        ("a\x00=1", "not a valid"),
        ("\n".join(f"a{n}=1,2,3,4,5" for n in range(8)), "more than 100"),
    ],
)
def test_what_cannot_be_a_sweep_says_why(text, words):
    with pytest.raises(LaunchInvalid) as refused:
        read_sweep(text)
    assert words in refused.value.fields["sweep"]


@pytest.mark.parametrize("given", [{"a": 1}, {"a": []}, {"a": [None]}, {"a": [True]}])
def test_what_a_program_sends_is_checked_alike(given):
    with pytest.raises(LaunchInvalid):
        checked_sweep(given)
