"""The first process of a Job that Slurm runs: it submits the job and follows it.

It runs on the agent's host as the student, in the place of the Job's own program. So
the shim has a log, an end and an exit status as of any Job:

1. It looks for a job of its name and for its exit status, and submits one if there is
   neither. A submission whose answer was lost is looked for first.
2. It copies the job's log to its own output, from a file in the Job's folder.
3. On SIGTERM it sends SIGTERM to the job. After the grace period the shim kills this
   process and cancels the job.
4. It ends with the exit status of the job.

While Slurm does not answer, it waits. The job goes on meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from placement.agent.slurm import slurm_client
from placement.agent.slurm.job_script import (
    BEGUN_FOLDER,
    ENDED,
    EXIT,
    FOLDER,
    LOG,
    LOST,
    LOST_FILE,
    SCRIPT_FILE,
    SlurmState,
    batch_script,
    job_name,
    reason_text,
    submit_command,
)
from placement.agent.slurm.log_lines import LogLines
from placement.agent.slurm.slurm_client import SlurmRefused, SlurmUnavailable
from placement.protocol.commands import Order, parse_order, remaining_seconds
from placement.protocol.job_lifecycle import CANNOT_START

STEP_SECONDS = 0.5
ASK_SECONDS = 3.0
"""Between two questions about a job that waits, or is to end."""
RUNS_ASK_SECONDS = 15.0
"""Between two questions about a job that runs. Its files show its end sooner."""
PATIENCE_SECONDS = 10.0
"""After the end of a job, until its files are visible on the agent's host."""
PIECE_BYTES = 64 * 1024
UNSEEN_FOLDER = (
    "{node} could not write into {folder}. That folder has to be on a file system that "
    "this host and the nodes of Slurm see under the same path. The admin finds more in "
    "docs/slurm.md#run"
)
BEGIN_SECONDS = 600.0
"""For which Slurm may show a job as running that has not begun."""
MOST_SUBMISSIONS = 3
"""A controller that dies may forget a job that it has just accepted."""


class SlurmLeader:
    """One attempt of one Job."""

    def __init__(self, order: Order, work: Path, script: str) -> None:
        self.order, self.work, self.script = order, work, script
        self.name = job_name(order)
        self.folder = work / FOLDER
        self.user = str(os.geteuid())
        self.copied = 0
        self.lines = LogLines()
        self.asked_to_stop = self.told_to_stop = False
        self.silent = False
        self.last_reason = self.last_refusal = ""
        self.seen: SlurmState | None = None
        self.submissions = 0
        self.forgotten = self.stuck = False
        self.runs_since = 0.0

    def run(self) -> int:
        """Submit the job, follow it to its end, and return its exit status."""
        signal.signal(signal.SIGTERM, self._on_term)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        script = self.folder / SCRIPT_FILE
        script.write_text(self.script)
        script.chmod(0o700)
        if not self._submit():
            return CANNOT_START
        ask_at = ended_at = 0.0
        while True:
            self._copy_log()
            status = self._exit_status()
            if status is not None:
                self._copy_log(last=True)
                return status
            now = time.monotonic()
            if ended_at and now - ended_at > PATIENCE_SECONDS:
                if not self._submit_again():
                    return self._status_of_lost_files()
                ended_at = 0.0
            to_stop = self.asked_to_stop and not self.told_to_stop
            if (now >= ask_at or to_stop) and not ended_at:
                ended_at = now if self._over() else 0.0
                ask_at = now + self._pause_seconds()
            time.sleep(STEP_SECONDS)

    def _pause_seconds(self) -> float:
        runs = self.seen is not None and self.seen.state == "RUNNING"
        return RUNS_ASK_SECONDS if runs and not self.asked_to_stop else ASK_SECONDS

    def _submit(self) -> bool:
        """Submit the job once. False: Slurm refuses it, or it was stopped before."""
        while not self.asked_to_stop:
            try:
                self.seen = slurm_client.find(self.name, self.user)
                if self.stuck and self.seen is not None and self.seen.state in ENDED:
                    self.seen = None
                # Slurm may have run it, and forgotten it since.
                if self.seen is None and self._exit_status() is None:
                    left = self._left_seconds()
                    words = (str(self.folder), str(self.work), left)
                    slurm_client.ask(submit_command(self.order, *words))
                    self.submissions += 1
                self.stuck, self.runs_since = False, 0.0
                self._heard()
                return True
            except SlurmUnavailable as error:
                # It may have taken the job: the next round looks for it first.
                self._say_silent(error)
            except SlurmRefused as refusal:
                self._say(f"Slurm refuses the job: {refusal}")
                return False
            time.sleep(ASK_SECONDS)
        return False

    def _submit_again(self) -> bool:
        """Submit a job again that Slurm did not begin. False: it began, or is not
        wanted any more.
        """
        lost = self.forgotten or self.stuck
        if not lost or self._has_begun() or self.submissions >= MOST_SUBMISSIONS:
            return False
        self._say("Slurm has lost the job before it began. It is submitted again")
        return self._submit()

    def _has_begun(self) -> bool:
        return (self.folder / BEGUN_FOLDER).exists()

    def _over(self) -> bool:
        """Return whether Slurm has ended the job. Ask for its end if it is due."""
        try:
            found = slurm_client.find(self.name, self.user)
            if self.asked_to_stop and not self.told_to_stop and found is not None:
                self._stop(found)
                self.told_to_stop = True
            elif found is not None:
                self._check_beginning(found)
        except SlurmUnavailable as error:
            self._say_silent(error)
            return False
        except SlurmRefused as refusal:
            if str(refusal) != self.last_refusal:
                self.last_refusal = str(refusal)
                self._say(f"Slurm refuses a question: {refusal}")
            return False
        self._heard()
        self.forgotten = found is None
        if found is None:
            return True  # it has ended long ago, or the controller lost it
        self.seen = found
        if found.state == "PENDING" and found.reason not in ("None", self.last_reason):
            self.last_reason = found.reason
            self._say(f"waits in Slurm: {reason_text(found.reason)}")
        return found.state in ENDED

    def _check_beginning(self, found: SlurmState) -> None:
        """Cancel a job that Slurm shows as running, and that does not begin.

        Slurm 22.05 keeps such a job until its time limit, after slurmctld and slurmd
        were killed while it started.
        """
        if found.state != "RUNNING" or self._has_begun():
            self.runs_since = 0.0
            return
        now = time.monotonic()
        self.runs_since = self.runs_since or now
        if now - self.runs_since > BEGIN_SECONDS and not self.stuck:
            slurm_client.cancel(self.name, self.user)
            self.stuck = True
            self._say(
                f"Slurm shows the job as running on {self._node()}, but it has not "
                f"begun for {BEGIN_SECONDS / 60:.0f} minutes. It is cancelled"
            )

    def _stop(self, found: SlurmState) -> None:
        if found.state == "PENDING":
            slurm_client.cancel(self.name, self.user)
        else:
            words = ["--quiet", "--signal=TERM", "--batch", f"--name={self.name}"]
            slurm_client.ask(["scancel", *words, f"--user={self.user}"])

    def _exit_status(self) -> int | None:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int((self.folder / EXIT).read_text()[:8]) & 0xFF
        return None

    def _status_of_lost_files(self) -> int:
        """Return the exit status of a job that ended without writing one."""
        self._copy_log(last=True)
        state = self.seen.state if self.seen and not self.forgotten else ""
        self._say(f"Slurm ended the job: {state or 'it no longer knows it'}")
        reason = self.seen.reason if self.seen and not self.forgotten else ""
        if reason == "JobLaunchFailure" and not (self.folder / LOG).exists():
            # As of slurmstepd: "Could not open stdout file".
            self._say(UNSEEN_FOLDER.format(node=self._node(), folder=self.work))
            return CANNOT_START
        if state in LOST or self.forgotten:
            (self.folder / LOST_FILE).touch()
        if state == "COMPLETED":
            return 0
        return 128 + signal.SIGTERM if state == "CANCELLED" else 1

    def _copy_log(self, *, last: bool = False) -> None:
        with (
            contextlib.suppress(FileNotFoundError),
            (self.folder / LOG).open("rb") as file,
        ):
            file.seek(self.copied)
            while piece := file.read(PIECE_BYTES):
                self.copied += len(piece)
                _write(self.lines.take(piece))
        if last:
            _write(self.lines.end())

    def _node(self) -> str:
        assert self.order.slurm is not None
        return self.order.slurm.node

    def _left_seconds(self) -> float:
        order = self.order
        return remaining_seconds(order.deadline_at, order.issued_at, time.time())

    def _say(self, text: str) -> None:
        _write(f"gpuportal: {text}\n".encode())

    def _say_silent(self, error: Exception) -> None:
        if not self.silent:
            self._say(f"{error}. The portal tries again")
        self.silent = True

    def _heard(self) -> None:
        if self.silent:
            self._say("Slurm answers again")
        self.silent = False

    def _on_term(self, _signal: int, _frame: FrameType | None) -> None:
        self.asked_to_stop = self.lines.expected = True


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]


def enter(
    order: Order, argv: Sequence[str], env: Mapping[str, str], work: Path, code: Path
) -> NoReturn:
    """Replace this process by the leader of a Job in Slurm.

    Args:
        argv: the Job's own program, for the node.
        env: its variables there.
        code: the folder of the portal's code.

    Raises:
        OSError: Python cannot be started.
    """
    folder = str(work / FOLDER)
    task = {"payload": order.payload(), "script": batch_script(argv, env, folder)}
    told = os.memfd_create("task")
    os.write(told, json.dumps(task).encode())
    os.lseek(told, 0, os.SEEK_SET)
    os.dup2(told, 0)
    here = {name: env[name] for name in ("HOME", "USER", "LOGNAME") if name in env}
    own = slurm_client.variables() | here
    own |= {"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(code)}
    module = "placement.agent.slurm.slurm_leader"
    os.execve(sys.executable, [sys.executable, "-P", "-m", module], own)


def main() -> int:
    """Run the task that standard input has, in the Job's folder."""
    task = json.load(sys.stdin)
    order = parse_order(str(task["payload"]))
    leader = SlurmLeader(order, Path.cwd(), str(task["script"]))
    status = leader.run()
    if leader.asked_to_stop and status == 128 + signal.SIGTERM:
        # The job ended by the signal, and has no exit status, as on other nodes.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    return status


if __name__ == "__main__":
    sys.exit(main())
