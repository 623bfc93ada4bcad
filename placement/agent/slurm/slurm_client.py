"""Run Slurm's commands on the agent's host."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from placement.agent.slurm.job_script import (
    SlurmState,
    find_command,
    read_span,
    read_states,
)
from telemetry.protocol.slurm_silence import is_silence

CONF, CLIENT_FOLDER = "SLURM_CONF", "GPUPORTAL_SLURM_FOLDER"
"""Variables of the node worker, as in docs/slurm.md."""
SECONDS = 20.0
PING_SECONDS = 5.0


class SlurmUnavailable(Exception):
    """Slurm does not answer. What was asked may have been done."""


class SlurmRefused(Exception):
    """Slurm answers, and refuses. The text is its own."""


def ask(command: Sequence[str]) -> str:
    """Run one command. Return what it printed.

    Raises:
        SlurmUnavailable: no controller answers.
        SlurmRefused: the command failed while the controller answers, or it is not
            installed.
    """
    if b" is UP" not in _run(["scontrol", "ping"], PING_SECONDS).stdout:
        # The commands would try for nine seconds.
        raise SlurmUnavailable("the controller of Slurm does not answer")
    done = _run(command, SECONDS)
    if done.returncode != 0:
        words = " ".join(done.stderr.decode(errors="replace").split())[:300]
        if is_silence(words):
            # The controller died after the ping.
            raise SlurmUnavailable(words)
        raise SlurmRefused(words or f"{command[0]}: exit status {done.returncode}")
    return done.stdout.decode(errors="replace")


def find(name: str, user: str) -> SlurmState | None:
    """Return the newest job of a name and a user. None: Slurm has none, or no longer.

    Raises what `ask` raises.
    """
    found = read_states(ask(find_command(name, user)))
    return found[0] if found else None


def cancel(name: str, user: str) -> None:
    """End the job of a name and a user at once. One that is gone is no error.

    Raises what `ask` raises.
    """
    ask(["scancel", "--quiet", f"--name={name}", f"--user={user}"])


def ran_seconds(job_id: str) -> int:
    """Return for how long a job has run. Raises what `ask` raises."""
    return read_span(ask(["squeue", "--noheader", f"--jobs={job_id}", "--format=%M"]))


def variables() -> dict[str, str]:
    """Return the variables that Slurm's commands need."""
    ours = (CONF, CLIENT_FOLDER)
    kept = {name: os.environ[name] for name in ours if name in os.environ}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}


def _run(command: Sequence[str], seconds: float) -> subprocess.CompletedProcess[bytes]:
    folder = os.environ.get(CLIENT_FOLDER) or None
    path = shutil.which(command[0], path=folder)
    if path is None:
        raise SlurmRefused(f"{command[0]} is not installed on the agent's host")
    try:
        return subprocess.run(
            [path, *command[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=variables() | {"PATH": os.environ.get("PATH", os.defpath)},
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        why = f"{command[0]} gave no answer in {seconds:.0f} s"
        raise SlurmUnavailable(why) from error
    except OSError as error:
        raise SlurmUnavailable(f"{command[0]}: {error.strerror}") from error
