"""GPU time of Slurm's jobs, from lines of sacct."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.slurm import slurm_commands
from telemetry.slurm.sacct_usage import read_sacct, read_sacct_lines, sum_usage
from telemetry.slurm.slurm_commands import SlurmCommands
from telemetry.slurm.slurm_output import SlurmOutputInvalid

pytestmark = pytest.mark.pure
TRES = "billing=2,cpu=2,gres/gpu:a100=2,gres/gpu=2,node=1"


def line(
    *, job="7", start="1000", end="1600", elapsed="600", user="ada", tres=TRES
) -> str:
    return f"lab|{job}|900|{start}|{end}|{elapsed}|{user}|vision|{tres}|\n"


def usage(text: str, start: int = 0, end: int = 10_000):
    found = sum_usage(
        read_sacct(text.encode().splitlines(keepends=True)), start=start, end=end
    )
    return [(one.account, one.user, one.runs, one.gpu_seconds) for one in found]


def test_adds_the_gpu_time_of_each_user_and_account():
    text = line() + line(job="8") + line(job="9", user="bo")
    assert usage(text) == [("vision", "ada", 2, 2400), ("vision", "bo", 1, 1200)]


def test_the_same_run_twice_counts_once_and_a_requeued_one_twice():
    assert usage(line() + line()) == [("vision", "ada", 1, 1200)]
    again = line(start="2000", end="2060", elapsed="60")
    assert usage(line() + again) == [("vision", "ada", 2, 1320)]


@pytest.mark.parametrize(
    ("start", "end", "seconds"),
    [(0, 1000, 0), (0, 1100, 200), (1300, 9999, 600), (1600, 9999, 0)],
)
def test_counts_only_what_is_in_the_window(start, end, seconds):
    found = usage(line(), start, end)
    assert sum(one[3] for one in found) == seconds


def test_a_job_that_runs_counts_until_the_end_of_the_window():
    text = line(end="Unknown", elapsed="99999")
    assert usage(text, 0, 1500) == [("vision", "ada", 1, 1000)]


def test_suspended_time_is_not_counted():
    assert usage(line(elapsed="100")) == [("vision", "ada", 1, 200)]


def test_jobs_without_gpus_or_without_a_start_and_banners_are_left_out():
    text = "*** welcome ***\n" + line(tres="cpu=2") + line(start="None", end="None")
    assert usage(text + line(start="Unknown")) == []


@pytest.mark.parametrize("job", ["x", "-1", "7.batch", "9" * 30])
def test_refuses_an_invalid_number(job):
    with pytest.raises(SlurmOutputInvalid, match="no number"):
        read_sacct([line(job=job).encode()])


def test_refuses_times_of_another_format():
    with pytest.raises(SlurmOutputInvalid, match="2026-11-28"):
        read_sacct([line(start="2026-11-28T10:00:00").encode()])


def test_leaves_out_and_counts_the_lines_that_it_cannot_read():
    text = line(job="x") + line() + line(start="2026-11-28T10:00:00")
    found = read_sacct_lines(text.encode().splitlines(keepends=True))
    assert [run.job_id for run in found.runs] == [7]
    assert found.invalid == 2
    assert "no number 'x'" in found.first_invalid


@given(st.text(alphabet="|=gres/pu:0123456789Unk\n", max_size=200))
def test_takes_any_text(text):
    try:
        runs = read_sacct(text.encode().splitlines(keepends=True))
    except SlurmOutputInvalid:
        return
    assert all(one.gpu_seconds > 0 for one in sum_usage(runs, start=0, end=10**10))


def test_output_of_any_length_is_read_line_by_line(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_commands, "MOST_BYTES", 10)
    monkeypatch.setattr(slurm_commands, "MOST_LINE_BYTES", 200)
    told = f"{'x' * 500}\n{line()}{line(job='8')}{line(job='')}"
    (tmp_path / "told").write_text(told)
    program = tmp_path / "sacct"
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/told\n")
    program.chmod(0o700)
    commands = SlurmCommands(folder=str(tmp_path))
    day = datetime(2030, 1, 1, tzinfo=UTC)
    found = commands.readable_runs(day, day)
    assert [run.job_id for run in found.runs] == [7, 8]
    assert found.invalid == 1
    program.write_text("#!/bin/sh\necho first; echo broken >&2; exit 3\n")
    with pytest.raises(SlurmOutputInvalid, match="sacct: broken"):
        commands.runs(day, day)
