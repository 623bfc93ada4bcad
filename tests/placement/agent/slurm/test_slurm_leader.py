"""The batch script, and how a job is submitted once and followed, without Slurm."""

import os
import signal
import subprocess
from unittest import mock

import pytest

from placement.agent.job_folder import JobFolder
from placement.agent.keeper import KeptFolder
from placement.agent.slurm import slurm_client, slurm_job, slurm_leader
from placement.agent.slurm.job_script import (
    BEGUN_FOLDER,
    EXIT,
    FOLDER,
    LOST_FILE,
    REQUEUED,
    SlurmState,
    batch_script,
    job_name,
    submit_command,
)
from placement.agent.slurm.log_lines import LogLines
from placement.agent.slurm.slurm_client import SlurmRefused, SlurmUnavailable
from placement.agent.slurm.slurm_leader import SlurmLeader
from placement.protocol.commands import SlurmPlace, parse_order
from placement.protocol.job_lifecycle import CANNOT_START
from tests.placement.nodes import make_order

ORDER = make_order(
    slurm=SlurmPlace("gp1", "gp_lab1_17"), key="abc", grace_seconds=29.5, job=7
)


def started(tmp_path, *argv: str, env=None, **variables: str) -> subprocess.Popen:
    """Run a batch script as Slurm does."""
    script = batch_script(argv, env or {}, str(tmp_path))
    return subprocess.Popen(
        ["/bin/sh", "-c", script],
        env={"PATH": os.defpath, **variables},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_words_and_variables_reach_the_program_as_they_are(tmp_path):
    strange = "a 'b' $HOME `id` \n;"
    env = {"A": strange, "CUDA_VISIBLE_DEVICES": "GPU-1"}
    words = ("printenv", "A", "CUDA_VISIBLE_DEVICES")
    job = started(tmp_path, *words, env=env, CUDA_VISIBLE_DEVICES="2,3")
    assert job.communicate()[0] == f"{strange}\n2,3\n"
    assert (tmp_path / "exit").read_text() == "0\n"
    other = tmp_path / "other"
    other.mkdir()
    job = started(other, "sh", "-c", 'echo "$1"; exit 5', "x", strange)
    assert job.communicate()[0] == f"{strange}\n"
    assert job.returncode == 5
    assert (other / "exit").read_text() == "5\n"


def test_a_program_may_end_well_after_term(tmp_path):
    ending = "trap 'sleep 0.2; echo saved; exit 3' TERM"
    program = f"{ending}; echo on; while :; do sleep 0.1; done"
    job = started(tmp_path, "sh", "-c", program)
    assert job.stdout is not None
    assert job.stdout.readline() == "on\n"
    # As Slurm does with --batch.
    os.kill(job.pid, signal.SIGTERM)
    assert job.communicate()[0] == "saved\n"
    assert (tmp_path / "exit").read_text() == "3\n"


def test_a_job_that_slurm_starts_again_does_nothing(tmp_path):
    program = ("sh", "-c", f"echo >>{tmp_path}/ran")
    # Slurm counts a start that slurmd has not heard of. It has not run, so it runs now.
    again = {"SLURM_RESTART_COUNT": "1"}
    assert started(tmp_path, *program, **again).communicate()[0] == ""
    # The same attempt was submitted twice, because the controller forgot the first one.
    for more in (again, {}):
        job = started(tmp_path, *program, **more)
        assert job.communicate()[0] == f"{REQUEUED}\n"
    assert (tmp_path / "ran").read_text() == "\n"


def test_the_command_to_submit_has_the_time_that_is_left():
    words = submit_command(ORDER, "/w/.slurm", "/w", 3599.0)
    assert "--time=59" in words
    assert "--signal=B:TERM@30" in words
    assert "--gres=gpu:1" in words
    assert "--exclusive" in words
    assert "--reservation=gp_lab1_17" in words
    assert "--comment=gp:7:1" in words
    # An older node refuses what it cannot carry out.
    assert '"v":4' in ORDER.payload()
    assert parse_order(ORDER.payload()) == ORDER


class Slurm:
    """Answers as the client's functions do."""

    def __init__(self, monkeypatch) -> None:
        self.states: list[SlurmState | Exception | None] = []
        self.submitted = 0
        self.lose_answer = self.refuse = False
        self.cancelled: list[str] = []
        monkeypatch.setattr(slurm_client, "find", self.find)
        monkeypatch.setattr(slurm_client, "ask", self.ask)
        monkeypatch.setattr(slurm_client, "cancel", lambda *w: self.cancelled.append(w))
        for name in (
            "STEP_SECONDS",
            "ASK_SECONDS",
            "RUNS_ASK_SECONDS",
            "PATIENCE_SECONDS",
        ):
            monkeypatch.setattr(slurm_leader, name, 0.01)

    def find(self, name: str, user: str) -> SlurmState | None:
        assert name == job_name(ORDER)
        found = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(found, Exception):
            raise found
        return found

    def ask(self, command) -> str:
        if command[0] == "sbatch":
            self.submitted += 1
            if self.refuse:
                raise SlurmRefused("Requested reservation is invalid")
            if self.lose_answer:
                self.lose_answer = False
                raise SlurmUnavailable("sbatch gave no answer in 20 s")
        return ""


@pytest.fixture
def slurm(monkeypatch) -> Slurm:
    return Slurm(monkeypatch)


def state(word: str, reason: str = "None") -> SlurmState:
    return SlurmState("7", word, reason)


def follow(tmp_path, capfd) -> tuple[int, str]:
    before = signal.getsignal(signal.SIGTERM)
    try:
        code = SlurmLeader(ORDER, tmp_path, "#!/bin/sh\n").run()
    finally:
        signal.signal(signal.SIGTERM, before)
    return code, capfd.readouterr().out


def test_a_lost_answer_to_a_submission_is_looked_for(slurm, tmp_path, capfd):
    slurm.lose_answer = True
    slurm.states = [None, state("RUNNING"), state("COMPLETED")]
    code, said = follow(tmp_path, capfd)
    assert slurm.submitted == 1
    assert code == 0
    assert "gave no answer" in said
    assert "Slurm answers again" in said


def test_a_leader_that_comes_back_submits_nothing(slurm, tmp_path, capfd):
    slurm.states = [state("RUNNING"), state("FAILED")]
    assert follow(tmp_path, capfd)[0] == 1
    assert slurm.submitted == 0


def test_a_job_that_slurm_has_forgotten_is_not_submitted_again(slurm, tmp_path, capfd):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "exit").write_text("3\n")
    slurm.states = [None]
    assert follow(tmp_path, capfd)[0] == 3
    assert slurm.submitted == 0


def test_a_job_that_was_lost_before_it_began_is_submitted_again(slurm, tmp_path, capfd):
    slurm.states = [None, None, None, state("RUNNING"), state("COMPLETED")]
    code, said = follow(tmp_path, capfd)
    assert (code, slurm.submitted) == (0, 2)
    assert said.count("Slurm has lost the job before it began") == 1
    assert not (tmp_path / FOLDER / LOST_FILE).exists()


@pytest.mark.parametrize(("begun", "submitted"), [(False, 2), (True, 1)])
def test_a_job_that_slurm_shows_as_running_and_does_not_begin_is_submitted_again(
    slurm, tmp_path, capfd, monkeypatch, begun, submitted
):
    monkeypatch.setattr(slurm_leader, "BEGIN_SECONDS", 0.0)
    (tmp_path / FOLDER).mkdir()
    if begun:
        (tmp_path / FOLDER / "begun").mkdir()
    away = SlurmUnavailable("the controller of Slurm does not answer")
    runs, ended = state("RUNNING"), state("COMPLETED")
    slurm.states = [None, runs, runs, away, *([runs] if begun else [])]
    slurm.states += [ended] if begun else [runs, state("CANCELLED"), state("CANCELLED")]
    slurm.states += [runs, ended]
    code, said = follow(tmp_path, capfd)
    assert (code, slurm.submitted) == (0, submitted)
    assert (
        len(slurm.cancelled) == said.count("but it has not begun for") == submitted - 1
    )


@pytest.mark.parametrize(("begun", "submitted"), [(False, 3), (True, 1)])
def test_a_job_that_stays_lost_is_not_submitted_for_ever(
    slurm, tmp_path, capfd, begun, submitted
):
    slurm.states = [None, state("RUNNING") if begun else None, None]
    (tmp_path / FOLDER).mkdir()
    if begun:
        (tmp_path / FOLDER / "begun").mkdir()
    code, said = follow(tmp_path, capfd)
    assert (code, slurm.submitted) == (1, submitted)
    assert "Slurm ended the job: it no longer knows it" in said
    assert (tmp_path / FOLDER / LOST_FILE).exists()


@pytest.mark.parametrize(
    "words", ["Unable to contact slurm controller (connect failure)", "Invalid user"]
)
def test_a_controller_that_dies_after_the_ping_is_no_refusal(
    tmp_path, monkeypatch, words
):
    program = tmp_path / "scontrol"
    program.write_text(
        '#!/bin/sh\nif [ "$1" = ping ]; then echo Slurmctld is UP; exit; fi\n'
        f"echo '{words}' >&2; exit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv(slurm_client.CLIENT_FOLDER, str(tmp_path))
    error = SlurmUnavailable if "contact" in words else SlurmRefused
    with pytest.raises(error, match=words[:10]):
        slurm_client.ask(["scontrol", "update"])


def test_the_portal_hears_of_a_start_when_slurm_has_begun_the_job(tmp_path):
    folder = JobFolder.of(tmp_path, ORDER.job, ORDER.attempt, ORDER.key)
    (folder.work / FOLDER).mkdir(parents=True)
    folder.write("order", {"payload": ORDER.payload()})
    kept = KeptFolder(folder)
    kept.status = {"event": "started", "started_at": 1000.0}
    assert kept.told_status()["started_at"] is None
    begun = folder.work / FOLDER / BEGUN_FOLDER
    begun.mkdir()
    for told, clock in ((1500.0, 1500.0), (1000.0, 900.0)):
        os.utime(begun, (clock, clock))
        assert kept.told_status()["started_at"] == told
    # It has an exit status. The file server shows the rest later.
    begun.rmdir()
    (folder.work / FOLDER / EXIT).write_text("0\n")
    assert kept.told_status()["started_at"] == 1000.0


def test_a_cancel_is_repeated_until_slurm_has_ended_the_job(tmp_path, monkeypatch):
    folder = JobFolder.of(tmp_path, ORDER.job, ORDER.attempt, ORDER.key)
    folder.path.mkdir(parents=True)
    folder.write("order", {"payload": ORDER.payload()})
    asked = mock.Mock(side_effect=SlurmUnavailable("the controller does not answer"))
    seen = mock.Mock(return_value=state("RUNNING"))
    monkeypatch.setattr(slurm_client, "cancel", asked)
    monkeypatch.setattr(slurm_client, "find", seen)
    slurm_job.cancel(ORDER, folder)
    slurm_job.cancel_marked(tmp_path)
    # The controller takes it, and dies before it has stored that.
    asked.side_effect = None
    slurm_job.cancel_marked(tmp_path)
    slurm_job.cancel_marked(tmp_path)
    seen.return_value = state("COMPLETING")
    slurm_job.cancel_marked(tmp_path)
    assert asked.call_count == 5
    seen.return_value = state("CANCELLED")
    for _ in range(2):
        slurm_job.cancel_marked(tmp_path)
    assert (asked.call_count, seen.call_count) == (5, 6)
    # One that Slurm no longer knows is over.
    seen.return_value = None
    slurm_job.cancel(ORDER, folder)
    assert asked.call_count == 5


def test_a_refused_question_is_told_once(slurm, tmp_path, capfd):
    no = SlurmRefused("Invalid user id")
    slurm.states = [state("RUNNING"), no, no, no, state("FAILED")]
    code, said = follow(tmp_path, capfd)
    assert code == 1
    assert said.count("Slurm refuses a question: Invalid user id") == 1


@pytest.mark.parametrize("word", ["NODE_FAIL", "PREEMPTED"])
def test_a_job_that_waits_says_why_and_one_whose_node_fails_is_lost(
    slurm, tmp_path, capfd, word
):
    why = "ReqNodeNotAvail, UnavailableNodes:gp1"
    away = SlurmUnavailable("the controller of Slurm does not answer")
    slurm.states = [None, state("PENDING", why), away, state(word)]
    code, said = follow(tmp_path, capfd)
    assert "gpuportal: waits in Slurm: the node is not available\n" in said
    assert "does not answer. The portal tries again" in said
    assert f"Slurm ended the job: {word}" in said
    assert code == 1
    assert (tmp_path / FOLDER / LOST_FILE).exists()


def test_a_folder_that_the_node_does_not_see_is_told(slurm, tmp_path, capfd):
    slurm.states = [None, state("FAILED", "JobLaunchFailure")]
    code, said = follow(tmp_path, capfd)
    assert code == CANNOT_START
    assert f"gpuportal: gp1 could not write into {tmp_path}. That folder has" in said
    # One that has written and failed is another matter.
    (tmp_path / FOLDER / "log").write_text("no memory\n")
    code, said = follow(tmp_path, capfd)
    assert (code, "could not write" in said) == (1, False)


def test_a_refused_submission_is_not_repeated(slurm, tmp_path, capfd):
    slurm.states, slurm.refuse = [None], True
    code, said = follow(tmp_path, capfd)
    assert (code, slurm.submitted) == (CANNOT_START, 1)
    assert "Slurm refuses the job: Requested reservation is invalid" in said


def test_a_host_without_slurm_is_told(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv(slurm_client.CLIENT_FOLDER, str(tmp_path / "none"))
    assert follow(tmp_path, capfd) == (
        CANNOT_START,
        "gpuportal: Slurm refuses the job: "
        "scontrol is not installed on the agent's host\n",
    )


CANCELLED = b"slurmstepd-gp1: error: *** JOB 3 ON gp1 CANCELLED AT 2026-11-29T10:09:16"


@pytest.mark.parametrize(
    ("pieces", "expected", "log"),
    [
        ((b"step=1\n" + CANCELLED + b" ***\n",), True, b"step=1\n"),
        ((CANCELLED[:30], CANCELLED[30:] + b" ***\nlast"), True, b"last"),
        (
            (CANCELLED + b" DUE TO TIME LIMIT ***",),
            True,
            b"gpuportal: the job has no time left\n",
        ),
        (
            (CANCELLED + b" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n",),
            False,
            b"gpuportal: the node failed\n",
        ),
        (
            (CANCELLED + b" ***\n",),
            False,
            b"gpuportal: the job is cancelled in Slurm\n",
        ),
        ((b"50 %", b" slurmstepd: 1\n", b"slurm"), False, b"50 % slurmstepd: 1\nslurm"),
        ((b"slurmstepd" * 99,), False, b"slurmstepd" * 99),
    ],
)
def test_slurms_own_lines_are_in_the_portals_words(pieces, expected, log):
    lines = LogLines()
    lines.expected = expected
    assert b"".join([*map(lines.take, pieces), lines.end()]) == log
