"""The text of ``sshare -l -a -P``: equal rows, and clear about a line that is wrong."""

import json
from pathlib import Path

import pytest

from reservations.fairshare.sshare import RowsInvalid, rank_rows
from reservations.fairshare.sshare_text import sshare_rows

DATA = Path(__file__).parents[2] / "data" / "fairshare"
GIVEN = ("account", "user", "parent", "raw_shares", "raw_usage", "norm_shares")


@pytest.mark.parametrize("name", ["flatlab", "threelevel"])
def test_the_rows_are_those_of_the_recorded_tree(name):
    recorded = json.loads((DATA / f"{name}.json").read_text())["rows"]
    read = sshare_rows((DATA / f"{name}.sshare.txt").read_text())
    assert read == [{key: row[key] for key in GIVEN} for row in recorded]


@pytest.mark.parametrize("name", ["flatlab", "threelevel"])
def test_the_ranks_of_the_text_are_those_that_it_prints(name):
    text = (DATA / f"{name}.sshare.txt").read_text()
    header, *lines = (line.split("|") for line in text.splitlines())
    printed = [line[header.index("FairShare")] for line in lines]
    ranked = rank_rows(sshare_rows(text))
    assert len(ranked) == len(printed) > 10
    for row, wanted in zip(ranked, printed, strict=True):
        if wanted:
            assert row.fairshare == pytest.approx(float(wanted), abs=1.5e-6)
        else:
            assert row.fairshare is None


def test_a_banner_blank_lines_and_a_last_separator_change_nothing():
    text = (DATA / "flatlab.sshare.txt").read_text()
    with_last = "".join(f"{line}|\n" for line in text.splitlines())
    assert sshare_rows(f"Welcome to login1!\n\n{with_last}\n") == sshare_rows(text)


def test_an_account_after_a_deeper_one_belongs_to_its_depth():
    text = "Account|User|RawShares|RawUsage\n" + "".join(
        f"{line}\n"
        for line in ("root|||0", " a||1|0", "  a1||1|0", "   a2||1|0", " b||1|0")
    )
    assert [row["parent"] for row in sshare_rows(text)] == [
        None,
        "root",
        "a",
        "a1",
        "root",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "neither JSON nor the output of sshare"),
        ("Account|User\nroot|\n", "Account, User, RawShares, RawUsage"),
        ("H\nAccount|User|RawShares|RawUsage\nroot|\n", "line 3: 2 columns, 4"),
        ("Account|User|RawShares|RawUsage\n  lab||1|0\n", "line 2: the account above"),
        ("Account|User|RawShares|RawUsage\nroot||x|0\n", "line 2: RawShares must be"),
        ("Account|User|RawShares|RawUsage\nroot||1|-5\n", "line 2: RawUsage must be"),
        ("Account|User|RawShares|RawUsage\nroot||1|1e9\n", "RawUsage must be a whole"),
        ("Account|User|RawShares|RawUsage\nroot||1|١\n", "RawUsage must be a whole"),
        ("Account|User|RawShares|RawUsage\n" * 2, "line 2: a second table"),
        ("Account|User|RawShares|RawUsage\nCLUSTER: b\n", "line 2: a second cluster"),
    ],
)
def test_a_line_that_does_not_fit_is_named(text, said):
    with pytest.raises(RowsInvalid, match=said) as caught:
        sshare_rows(text)
    assert str(caught.value).isascii()
    assert "\n" not in str(caught.value)
