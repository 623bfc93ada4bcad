"""Rows in, rows out, as ``sshare -l``: equal to Slurm's, and clear about bad rows."""

import json
from pathlib import Path

import pytest

from reservations.fairshare.sshare import RowsInvalid, rank_rows, table

DATA = Path(__file__).parents[2] / "data" / "fairshare"
GIVEN = ("account", "user", "parent", "raw_shares", "raw_usage")


def root(**fields) -> dict:
    return {"account": "root", "user": None, "parent": None, **fields}


def user(name: str, **fields) -> dict:
    row = {"account": "root", "user": name, "raw_shares": 1, "raw_usage": 0}
    return row | fields


@pytest.mark.parametrize("name", ["flatlab", "threelevel"])
def test_equals_what_slurm_printed_row_by_row(name):
    recorded = json.loads((DATA / f"{name}.json").read_text())
    given = [{key: row[key] for key in GIVEN} for row in recorded["rows"]]
    for row, wanted in zip(rank_rows(given), recorded["rows"], strict=True):
        for key in (*GIVEN, "norm_shares", "effectv_usage", "level_fs", "fairshare"):
            value = getattr(row, key)
            if isinstance(wanted[key], float):
                assert value == pytest.approx(wanted[key], rel=1e-5, abs=1.5e-6), key
            else:
                assert value == wanted[key], key


def test_the_order_of_rows_changes_no_number():
    recorded = json.loads((DATA / "threelevel.json").read_text())["rows"]
    given = [{key: row[key] for key in GIVEN} for row in recorded]
    straight = {(row.account, row.user): row for row in rank_rows(given)}
    for row in rank_rows(given[::-1]):
        assert row == straight[row.account, row.user]


def test_the_table_is_indented_by_depth_and_leaves_out_what_slurm_does():
    lines = table(rank_rows([root(), user("alice", raw_usage=5)])).splitlines()
    assert lines[1].split() == ["root", "0.000000", "5", "1.000000"]
    assert lines[2].startswith(" root ")
    assert lines[2].split()[-1] == "1.000000"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "0 rows"),
        (["x"], "row 1: must be an object"),
        ([root(), user("a", account="lab")], r"row 2 .lab.: there is no such"),
        ([root(), root()], "an account of that name"),
        ([root(), user("a"), user("a")], "that user of that account was there"),
        ([root(), user("a", raw_usage=-1)], "raw_usage must be a whole number"),
        ([root(), user("a", raw_usage=None)], "raw_usage must be a whole number"),
        ([root(), user("a", raw_shares=1.5)], "raw_shares must be a whole number"),
        ([root(), user("a", raw_shares="many")], "raw_shares must be a whole number"),
        ([root(raw_usage=7), user("a", raw_usage=5)], "raw_usage is not 5, the sum"),
        ([root(), {"account": "lab", "parent": "none"}], "there is no parent none"),
        ([{"account": "a", "parent": "a"}], "without a parent"),
        ([root(), {"account": "b"}], "2 Accounts without a parent"),
        ([{"account": 3}], "must be names"),
        ([{"account": "a\x1b[2J"}], r"row 1 .a.x1b.2J.: account, user"),
    ],
)
def test_rows_that_form_no_tree_are_named(rows, said):
    with pytest.raises(RowsInvalid, match=said):
        rank_rows(rows)


def test_usage_that_decays_is_accepted_as_sshare_prints_it_cut_to_whole_numbers():
    # Really 10.6 + 20.7 = 31.3 in lab, 0.4 + 0.4 in other, 32.1 in all.
    rows = rank_rows(
        [
            root(raw_usage=32),
            {"account": "lab", "parent": "root", "raw_shares": 1, "raw_usage": 31},
            user("a", account="lab", raw_usage=10),
            user("b", account="lab", raw_usage=20),
            {"account": "other", "parent": "root", "raw_shares": 1, "raw_usage": 0},
            user("c", account="other", raw_usage=0),
            user("d", account="other", raw_usage=0),
        ]
    )
    assert [row.raw_usage for row in rows] == [32, 31, 10, 20, 0, 0, 0]
    assert rows[1].effectv_usage == pytest.approx(31 / 32)
    assert rows[2].effectv_usage == pytest.approx(10 / 31)
    assert [row.fairshare for row in rows if row.user] == [0.5, 0.25, 1.0, 1.0]


@pytest.mark.parametrize("wrong", [27, 33])
def test_usage_that_no_rounding_explains_is_refused(wrong):
    with pytest.raises(RowsInvalid, match="raw_usage is not 30, the sum"):
        rank_rows([root(raw_usage=wrong), *(user(n, raw_usage=15) for n in "ab")])
