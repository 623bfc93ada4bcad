"""The operator's commands in a terminal."""

import gzip
import json
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from reservations.models import LedgerEntry
from tests.factories import make_reservation
from tests.reservations.conftest import NOW, at

SSHARE_TEXT = Path(__file__).parents[1] / "data" / "fairshare" / "flatlab.sshare.txt"


def test_the_tree_is_printed_as_sshare_prints_it(lab, alice, carol) -> None:
    lab.book(alice, lab.gpus[:1], NOW, 2)
    out = StringIO()
    call_command("fairshare", stdout=out)
    lines = out.getvalue().splitlines()
    assert lines[0].split()[0] == "Account"
    names = [line.split()[:2] for line in lines[1:]]
    assert [first for first, _ in names] == [
        "institute",
        "nlp",
        "nlp",
        "vision",
        "vision",
    ]
    assert (names[2][1], names[4][1]) == ("carol", "alice")
    assert lines[3].split()[-1] == "1.000000"
    assert lines[5].split()[-1] == "0.500000"


def test_the_tree_of_a_file_is_ranked_without_a_database(tmp_path) -> None:
    rows = [
        {"account": "root", "user": None, "parent": None, "raw_shares": None},
        {"account": "root", "user": "alice", "raw_shares": 1, "raw_usage": 30},
        {"account": "root", "user": "bob", "raw_shares": 1, "raw_usage": 10},
    ]
    file = tmp_path / "tree.json"
    file.write_text(json.dumps({"rows": rows}))
    out = StringIO()
    call_command("fairshare", "--from", str(file), "--json", stdout=out)
    told = json.loads(out.getvalue())["rows"]
    assert [row["fairshare"] for row in told] == [None, 0.5, 1.0]
    assert told[1]["level_fs"] == pytest.approx(2 / 3)


def test_what_sshare_printed_is_ranked_as_slurm_ranked_it() -> None:
    out = StringIO()
    call_command("fairshare", "--from", str(SSHARE_TEXT), "--json", stdout=out)
    ranks = {
        row["user"]: row["fairshare"] for row in json.loads(out.getvalue())["rows"]
    }
    assert (ranks["u01"], ranks["u08"]) == pytest.approx((5 / 12, 11 / 12))
    assert (ranks["u02"], ranks["u03"]) == pytest.approx((7 / 12, 7 / 12))


def test_a_list_that_leaves_users_out_is_refused(tmp_path) -> None:
    """``sshare -l -P`` of an ordinary user, printed by Slurm 22.05."""
    file = tmp_path / "sshare"
    file.write_text(
        "Account|User|RawShares|NormShares|RawUsage|NormUsage|EffectvUsage|FairShare"
        "|LevelFS|GrpTRESMins|TRESRunMins\n"
        "root|||0.000000|0||1.000000||||cpu=0\n"
        " chemistry||1|0.500000|0|0.000000|0.000000||inf||cpu=0\n"
        "  chemistry|alice|1|0.333333|0|0.000000|0.000000|1.000000|inf||cpu=0\n"
    )
    with pytest.raises(CommandError, match="sshare -l -a -P") as caught:
        call_command("fairshare", "--from", str(file))
    assert caught.value.returncode == 2


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Account|User|RawShares|RawUsage|NormShares\nroot||1|0|nan",
        "[1, 2",
        "not a table",
        "Account|User|RawShares|RawUsage\nroot|",
        '{"rows": 3}',
        "[" * 100_000,
        '[{"account": "a"}, 5]',
    ],
)
def test_a_file_that_is_no_tree_is_one_line_and_status_two(tmp_path, text) -> None:
    file = tmp_path / "tree.json"
    file.write_text(text)
    with pytest.raises(CommandError, match=r"tree\.json: ") as caught:
        call_command("fairshare", "--from", str(file))
    assert caught.value.returncode == 2
    assert "\n" not in str(caught.value)


def test_an_empty_site_has_no_tree(db) -> None:
    with pytest.raises(CommandError, match="no account"):
        call_command("fairshare")


def test_books_that_add_up_are_said_to(lab, alice) -> None:
    lab.book(alice, lab.gpus[:1], NOW, 2)
    out = StringIO()
    call_command("check_books", stdout=out)
    assert "add up" in out.getvalue()


def test_books_that_do_not_are_named(lab, alice) -> None:
    made = lab.book(alice, lab.gpus[:1], at(14), 2)
    LedgerEntry.objects.create(
        membership=made.membership,
        reservation=made,
        kind="release",
        gpu_seconds=-5,
        reason="forged",
    )
    make_reservation(alice, lab.gpus[1:2], at(9), at(10), state="ended")
    made.allocations.update(live=True)
    stray = make_reservation(alice, lab.gpus[2:3], at(9), at(10), state="ended")
    stray.allocations.update(live=True)
    err = StringIO()
    with pytest.raises(CommandError, match="2 errors"):
        call_command("check_books", stderr=err)
    assert f"reservation {made.pk} (confirmed) holds" in err.getvalue()
    assert f"reservation {stray.pk} is over" in err.getvalue()


TRACE = (
    "job_id,user,group,submit_s,gpus,duration_s,status,req_s\n"
    "a,alice,vision,0,1,3600,pass,3600\n"
    "b,bob,vision,0,1,3600,pass,7200\n"
)


class TestReplay:
    """`manage.py replay` needs neither database nor broker."""

    def replay(self, *arguments: str) -> str:
        out = StringIO()
        call_command("replay", *arguments, stdout=out)
        return out.getvalue()

    @pytest.mark.parametrize("packed", [False, True])
    def test_prints_the_figures(self, tmp_path, packed):
        trace = tmp_path / "trace.csv"
        data = TRACE.encode()
        trace.write_bytes(gzip.compress(data) if packed else data)
        found = json.loads(
            self.replay(str(trace), "--gpus", "1", "--policy", "fifo", "--json")
        )
        assert found["wait_mean_hours"] == 0.5
        assert found["jobs_per_second"] > 0
        assert "mean wait" in self.replay(str(trace), "--gpus", "1")

    @pytest.mark.parametrize(
        ("text", "options", "said"),
        [
            ("nothing", ["--gpus", "1"], "no column"),
            (TRACE, ["--gpus", "0"], "at least one is needed"),
            (TRACE, ["--gpus", "1", "--half-life", "-1"], "--half-life is -1"),
            (TRACE, ["--gpus", "1", "--quota", "nan"], "--quota is nan"),
        ],
    )
    def test_bad_input_is_one_line_and_status_two(self, tmp_path, text, options, said):
        trace = tmp_path / "trace.csv"
        trace.write_text(text)
        with pytest.raises(CommandError, match=said) as caught:
            self.replay(str(trace), *options)
        assert caught.value.returncode == 2
        assert "\n" not in str(caught.value)

    def test_a_file_that_is_not_there_is_said_so(self, tmp_path):
        with pytest.raises(CommandError, match="No such file"):
            self.replay(str(tmp_path / "no.csv"), "--gpus", "1")


def test_a_packed_trace_with_a_line_that_fills_the_memory_is_refused(tmp_path) -> None:
    bomb = tmp_path / "bomb.csv.gz"
    with gzip.open(bomb, "wt", compresslevel=1) as file:
        for _ in range(64):
            file.write("a" * 2**20)
    with pytest.raises(CommandError, match="a line is too long") as refused:
        call_command("replay", str(bomb), "--gpus", "4")
    assert refused.value.returncode == 2
