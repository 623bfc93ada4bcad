"""The batch script of a Job in Slurm, and the commands about it. Pure.

The name of a Job in Slurm is its key: a repeated command about it is about the same
job, also if the answer to the first one was lost.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from placement.protocol.commands import Order

FOLDER = ".slurm"
"""The folder in a Job's own folder for the files of the script."""
LOG, EXIT, SCRIPT_FILE = "log", "exit", "batch.sh"
BEGUN_FOLDER = "begun"
"""It is made by the first script of the attempt that runs."""
LOST_FILE = "lost"
REQUEUED = "gpuportal: Slurm has started this job again. The portal decides about that."
NOT_OURS = ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
"""Slurm sets them on the node."""
ENDED = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    }
)
"""States of a job that is over (squeue(1))."""
LOST = frozenset({"BOOT_FAIL", "NODE_FAIL", "PREEMPTED"})
"""States of a job that Slurm ended and that did not fail itself."""
MARGIN_SECONDS = 60.0
_REASONS = {
    "BeginTime": "its reservation has not begun, or its node did not start the job and "
    "Slurm tries again after two minutes",
    "Priority": "another job of the reservation is before it",
    "ReqNodeNotAvail": "the node is not available",
    "Reservation": "its time does not fit into the reservation, or it has not begun",
    "ReservationDeleted": "the reservation is gone",
    "Resources": "another job has the GPUs of the node",
}


@dataclass(frozen=True, slots=True)
class SlurmState:
    """A job as squeue prints it."""

    job_id: str
    state: str
    reason: str


def job_name(order: Order) -> str:
    """Return the name of an attempt in Slurm."""
    return f"gp-{order.job}-{order.attempt}-{order.key or '0'}"


def comment(order: Order) -> str:
    """Return the comment of an attempt in Slurm, for people."""
    return f"gp:{order.job}:{order.attempt}"


def batch_script(argv: Sequence[str], env: Mapping[str, str], folder: str) -> str:
    """Return a script that runs a program with these variables beside Slurm's own.

    It writes the exit status to a file, because Slurm forgets jobs after MinJobAge. It
    runs once: a job that Slurm has queued again, or that was submitted twice because
    the controller forgot the first one, is left to the portal. Slurm also queues a job
    again whose node did not start it, in spite of ``--no-requeue``. That one runs.

    Args:
        folder: of the file with the exit status, and of the mark of the first run.
    """
    names = [name for name in env if name not in NOT_OURS]
    exports = [f"export {name}={shlex.quote(env[name])}" for name in sorted(names)]
    done, begun, lost = (
        shlex.quote(f"{folder}/{name}") for name in (EXIT, BEGUN_FOLDER, LOST_FILE)
    )
    program = " ".join(shlex.quote(word) for word in argv)
    return "\n".join(
        (
            "#!/bin/sh",
            f"if ! mkdir {begun}; then",
            f"  echo {shlex.quote(REQUEUED)}",
            f"  : >{lost}",
            "  exit 1",
            "fi",
            "unset SLURM_EXPORT_ENV",
            *exports,
            "umask 077",
            # Slurm signals this shell. The program is in another process group.
            # Names that no variable of a job has.
            "gp_stops=0 gp_seen=-1 gp_status=127",
            "trap 'gp_stops=$((gp_stops + 1))"
            '; test -z "$gp_child" || kill -TERM -$gp_child\' TERM',
            f"setsid {program} &",
            "gp_child=$!",
            "test $gp_stops = 0 || kill -TERM -$gp_child",
            # A signal ends `wait`, also if the program has ended meanwhile: wait again.
            # 127: its status was taken before. The shell would write "Terminated".
            "while test $gp_seen != $gp_stops; do",
            "  gp_seen=$gp_stops",
            "  wait $gp_child 2>/dev/null",
            "  gp_now=$?",
            "  test $gp_now = 127 || gp_status=$gp_now",
            "done",
            f"echo $gp_status >{done}.new && mv {done}.new {done}",
            "exit $gp_status",
            "",
        )
    )


def submit_command(
    order: Order, folder: str, work: str, left_seconds: float
) -> list[str]:
    """Return the ``sbatch`` of an attempt.

    The type of the GPUs is not named: the node is, so that their number is enough, and
    a site may have none.

    Args:
        folder: of the script and of its log.
        left_seconds: to the Reservation's end.
    """
    place = order.slurm
    assert place is not None, "the command is not for Slurm"
    grace = math.ceil(order.grace_seconds)
    return [
        "sbatch",
        "--parsable",
        f"--job-name={job_name(order)}",
        f"--comment={comment(order)}",
        f"--reservation={place.reservation}",
        f"--nodelist={place.node}",
        "--nodes=1",
        "--ntasks=1",
        f"--gres=gpu:{len(order.gpu_uuids)}",
        *(["--exclusive"] if place.whole_node else []),
        f"--time={limit_minutes(left_seconds)}",
        f"--signal=B:TERM@{grace}",
        "--no-requeue",
        "--export=NONE",
        f"--chdir={work}",
        f"--output={folder}/{LOG}",
        "--open-mode=append",
        f"{folder}/{SCRIPT_FILE}",
    ]


def early_seconds(order: Order) -> float:
    """Return how long before the Reservation's end a job is ended.

    Slurm counts in minutes, and gives the node to others at the end. So a job gets
    SIGTERM and its grace before that.
    """
    return order.grace_seconds + MARGIN_SECONDS if order.slurm else 0.0


def limit_minutes(left_seconds: float) -> int:
    """Return the time limit of a job: whole minutes that fit, at least 1.

    >>> limit_minutes(3659.0), limit_minutes(20.0)
    (60, 1)
    """
    return max(1, int(left_seconds // 60))


def find_command(name: str, user: str) -> list[str]:
    """Return the ``squeue`` that finds a job by its name and its user, also for a while
    after its end."""
    return [
        "squeue",
        "--noheader",
        "--states=all",
        f"--name={name}",
        f"--user={user}",
        "--format=%A|%T|%r",
    ]


def read_states(output: str) -> list[SlurmState]:
    """Read what `find_command` printed, the newest job first.

    >>> read_states("7|RUNNING|None\\n")
    [SlurmState(job_id='7', state='RUNNING', reason='None')]
    """
    rows = [line.strip().split("|") for line in output.splitlines()]
    found = [SlurmState(*row) for row in rows if len(row) == 3 and row[0].isdecimal()]
    return sorted(found, key=lambda one: -int(one.job_id))


def read_span(text: str) -> int:
    """Return the seconds of a span as squeue prints it.

    >>> read_span("1-02:03:04"), read_span("3:04"), read_span("INVALID")
    (93784, 184, 0)
    """
    days, _, clock = text.strip().rpartition("-")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in parts) or not (days or "0").isdecimal():
        return 0
    seconds = 0
    for part in parts:
        seconds = seconds * 60 + int(part)
    return int(days or 0) * 86_400 + seconds


def reason_text(reason: str) -> str:
    """Return why a job waits in Slurm, in our words.

    >>> reason_text("ReqNodeNotAvail, UnavailableNodes:gp1")
    'the node is not available'
    """
    word = reason.partition(",")[0].strip()
    return _REASONS.get(word, f"Slurm says {reason}")
