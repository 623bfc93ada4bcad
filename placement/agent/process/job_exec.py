"""The last steps before a Job's own program: limits, user, folder, exec.

They are a value, because at the level ``enforced`` another process takes them, inside
the Job's unit (unit_entry.py). Elsewhere the forked child of the shim does
(job_process.py).
"""

from __future__ import annotations

import os
import shutil
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from placement.agent.process import private_mounts, process_tree, unix_user
from placement.agent.process.environment_cache import built_programs
from placement.agent.process.named_environment import NotBuilt, program_folder
from placement.agent.process.program_lookup import checked_argv, search_path
from placement.agent.process.unix_user import UnixIdentity
from placement.agent.slurm import slurm_leader
from placement.agent.storage import folder_tree
from placement.protocol.commands import JobLimits, Order
from placement.protocol.container_images import IMAGE_VARIABLE, image_of
from placement.protocol.job_lifecycle import CANNOT_START
from placement.protocol.launchers import Launcher, programs

SCRIPT = "script"
"""The file with a Job's own script in its folder."""
CHECKPOINT = "checkpoint"
"""The checkpoint's folder in a Job's folder. The resuming Job copies it."""
OURS = Path(__file__).resolve().parents[3]
"""The code with which served models and recipes run."""
MOST_HEAD_BYTES = 256
"""What the kernel reads of a script's first line (execve(2))."""
PRIVATE = {"tmp": Path("/tmp"), "var-tmp": Path("/var/tmp")}
"""Folders in ``private_tmp``, and their paths for a Job in a unit."""


@dataclass(frozen=True, slots=True)
class JobStart:
    """The remaining steps once session, log and descriptors are in place."""

    argv: tuple[str, ...]
    env: dict[str, str]
    work: Path
    identity: UnixIdentity | None
    limits: JobLimits
    shim_pid: int
    launcher: str = ""
    environment_folder: str = ""
    environments: Path | None = None
    """The folder of the environments that are built for its owner. None: none are."""
    resume: Path | None = None
    """The checkpoint to load, read as the Job's user."""
    resume_job: int = 0
    private_tmp: Path | None = None
    """The folder for the Job's /tmp. None: the shared one. Needs root."""
    slurm: Order | None = None
    """The command, if Slurm runs the Job. None: this process becomes it."""

    def run(self) -> NoReturn:
        """Replace this process by the Job's program. Write a failure to the log."""
        argv = list(self.argv)
        try:
            if self.private_tmp is not None:
                self._close_off(self.private_tmp)
            os.chdir(self.work)
            os.umask(0o077)
            unix_user.limit(self.limits, self.identity)
            unix_user.become(self.identity)
            process_tree.die_with_parent(self.shim_pid)
            image = image_of(self.environment_folder)
            folder = "" if image else self._program_folder()
            argv = checked_argv(argv, programs(Launcher(self.launcher)), folder)
            self._check_reach(argv)
            if self.resume is not None and not self._take_over(self.resume):
                os._exit(CANNOT_START)
            found = {"PATH": search_path(folder)}
            if image:
                found[IMAGE_VARIABLE] = self.environment_folder
            if self.slurm is not None:
                slurm_leader.enter(self.slurm, argv, self.env | found, self.work, OURS)
            os.execve(argv[0], argv, self.env | found)
        except OSError as error:
            why = _missing_interpreter(argv[0], error) or str(error)
            write_log(f"gpuportal: {argv[0]} cannot start: {why}\n")
        except BaseException:
            write_log("gpuportal: the job cannot start\n" + traceback.format_exc())
        os._exit(CANNOT_START)

    def _close_off(self, folder: Path) -> None:
        """Give the Job a private view of the machine. Raises OSError."""
        private_mounts.check_outside(folder, PRIVATE.values())
        # First: an earlier descriptor belongs to the view that is left.
        private_mounts.leave_shared_view()
        handles = folder_tree.make_owned(folder, self.identity, tuple(PRIVATE))
        own = Path(self.argv[0]).is_relative_to(sys.prefix)
        private_mounts.close_off(
            list(zip(handles, PRIVATE.values(), strict=True)),
            kept=(Path(sys.prefix), OURS) if own else (),
        )
        folder_tree.close_all(handles)

    def _program_folder(self) -> str:
        """Return the folder of the environment's programs. It may be built first."""
        try:
            return program_folder(self.environment_folder)
        except NotBuilt as missing:
            if self.environments is None:
                raise
            return built_programs(
                missing.source,
                self.environments,
                env=self.env,
                most_bytes=self.limits.disk_bytes,
            )

    def _check_reach(self, argv: list[str]) -> None:
        if self.identity is None:
            return
        for path in (self.work, Path(argv[0])):
            if not os.access(path, os.X_OK):
                raise PermissionError(
                    f"Unix user {self.identity.name} cannot reach {path}: a folder "
                    "above it is closed to other users"
                )

    def _take_over(self, source: Path) -> bool:
        """Copy a checkpoint completely or not at all. False: there is one that fails.

        Without a checkpoint the Job starts from the beginning, and its log says so.
        Starting although there is one would lose it. Links stay links, because this
        runs as the Job's user and reads what that user may read.
        """
        draft, job = self.work / f".{CHECKPOINT}.coming", self.resume_job
        try:
            if not source.exists():
                why = "it left none on this node"
                write_log(
                    f"gpuportal: no checkpoint of job {job}: {why}; the job starts "
                    "from the beginning\n"
                )
                return True
            shutil.copytree(source, draft, symlinks=True)
            draft.rename(self.work / CHECKPOINT)
        except OSError as error:  # shutil.Error too: a list of files and what it was
            shutil.rmtree(draft, ignore_errors=True)
            why = error.strerror or str(error)
            if isinstance(error, shutil.Error):
                why = str(error.args[0][0][2])
            write_log(
                f"gpuportal: the checkpoint of job {job} could not be copied here: "
                f"{why[:200]}\n"
            )
            return False
        write_log(f"gpuportal: resumes from the checkpoint of job {job}\n")
        return True


def _missing_interpreter(program: str, error: OSError) -> str:
    """Return why a script that exists is "not found": its first line; "": it is away.

    The kernel reports a missing interpreter as if the script itself were missing.
    """
    if not isinstance(error, FileNotFoundError):
        return ""
    try:
        handle = os.open(program, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with os.fdopen(handle, "rb") as file:
            head = file.readline(MOST_HEAD_BYTES)
    except OSError:
        return ""
    words = head.removeprefix(b"#!").split()
    if not head.startswith(b"#!") or not words:
        return ""
    return (
        f"its first line names {words[0].decode(errors='replace')}, which is not on "
        "this node. Remove that line, or choose the launcher python"
    )


def write_log(text: str) -> None:
    """Write into the Job's log, which is standard error here."""
    os.write(2, text.encode(errors="replace"))
