"""The Runner of a node: Job folders and shims on this machine.

A Job is accepted by creating its folder with one rename, so the same order twice is one
Job. A worker that dies meanwhile leaves either nothing or a folder that the keeper
finds and starts.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from placement.agent.job_folder import JobFolder, NodeView, job_folders, write_json
from placement.agent.process import process_tree, systemd_unit
from placement.agent.process.job_process import CODE_DIR, run_entry
from placement.agent.slurm import slurm_client, slurm_job
from placement.agent.storage import disk_space
from placement.protocol.commands import Order, parse_order
from telemetry import request_id
from telemetry.agent.isolation import isolation_of
from telemetry.proc_stat import process_table
from telemetry.protocol.hardware import Isolation

logger = logging.getLogger(__name__)
SHIM_VARIABLES = (
    "GPUPORTAL_NODE",
    "GPUPORTAL_WEB_URL",
    "GPUPORTAL_NODE_TOKEN_FILE",
    "GPUPORTAL_SIM_DIR",
    "GPUPORTAL_SUPERVISOR_PID",
    "GPUPORTAL_ALLOW_SCRIPTS",
    "GPUPORTAL_OWN_IDS",
    "GPUPORTAL_MEETING_PORTS",
    "GPUPORTAL_HF_HOME",
    slurm_client.CONF,
    slurm_client.CLIENT_FOLDER,
)
# Under `make run` the supervisor has this much time after it sent the signal.
HALT_GRACE_SECONDS = 2.0


class LocalRunner:
    """Starts, polls and stops shims under ``<NODE_DIR>/jobs``."""

    def __init__(self, node: NodeView) -> None:
        self.node = node
        self.jobs = node.node_dir / "jobs"

    def prepare(self) -> None:
        """Create the folder of all Jobs. Students may pass through it, not list it."""
        for path in (self.node.node_dir, self.jobs):
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o711)

    def folder(self, job: int, attempt: int, key: str = "") -> JobFolder:
        """Return an attempt's folder, whether it exists or not."""
        return JobFolder.of(self.jobs, job, attempt, key)

    def accept(self, order: Order, payload: str) -> JobFolder:
        """Create the Job's folder. An existing one is not changed."""
        folder = self.folder(order.job, order.attempt, order.key)
        order_json = {
            "payload": payload,
            "nonce": order.nonce,
            "deadline_at": order.deadline_at,
            "accepted_at": time.time(),
            "request_id": request_id.current(),
        }
        if self._make(folder, order_json, None):
            logger.info("job %s, attempt %s: accepted", order.job, order.attempt)
        return folder

    def refuse(self, folder: JobFolder, status: Mapping[str, object]) -> bool:
        """Create a folder that only has the reason of a refusal. False: it ran or
        runs.
        """
        return self._make(folder, {}, status)

    def _make(
        self,
        folder: JobFolder,
        order: Mapping[str, object],
        status: Mapping[str, object] | None,
    ) -> bool:
        self.prepare()
        if folder.path.is_dir():  # also where the disk has no room for a draft
            return False
        draft = self.jobs / f".{folder.name}.{secrets.token_hex(6)}"
        draft.mkdir(mode=0o711)
        try:
            draft.chmod(0o711)
            write_json(draft / "order.json", order)
            if status is not None:
                write_json(draft / "status.json", status)
            # rename(2) replaces only an empty folder, and a Job's is never empty.
            draft.rename(folder.path)
        except OSError:
            shutil.rmtree(draft)
            if not folder.path.is_dir():
                raise
            return False
        return True

    def start(self, folder: JobFolder) -> None:
        """Start the shim. It leaves this process at once and outlives it."""
        variables = {
            name: os.environ[name] for name in SHIM_VARIABLES if name in os.environ
        }
        variables |= {
            "PATH": os.environ.get("PATH", os.defpath),
            "GPUPORTAL_NODE": self.node.name,
            "GPUPORTAL_WEB_URL": self.node.web_url,
            "GPUPORTAL_NODE_TOKEN_FILE": str(self.node.token_file),
            "GPUPORTAL_SIM_DIR": str(self.node.sim_dir or ""),
            "GPUPORTAL_SUPERVISOR_PID": str(self.node.supervisor_pid or ""),
            "GPUPORTAL_ALLOW_SCRIPTS": "1" if self.node.allow_scripts else "0",
            "GPUPORTAL_OWN_IDS": "1" if self.node.own_ids else "0",
            systemd_unit.VARIABLE: isolation_of(self.node).value,
        }
        with (folder.path / "shim.log").open("ab") as diary:
            first = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "placement.agent.process.shim",
                    str(folder.path),
                ],
                cwd=CODE_DIR,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=diary,
                stderr=diary,
                start_new_session=True,
            )
        # The first process only forks the shim and ends.
        first.wait(30)

    def alive(self, folder: JobFolder) -> bool:
        """Return whether the Job's shim runs."""
        return shim_lives(folder)

    def stop(self, folder: JobFolder, reason: str) -> bool:
        """Have the shim end the Job. False: no shim runs."""
        return ask(folder, {"reason": reason, "lost": False})

    def end_strays(self, folder: JobFolder) -> int:
        """Kill the processes left by a shim that was killed. Return how many.

        They are known only by the mark in their environment. The number of a process
        group may belong to another program now.
        """
        nonce = folder.read("order").get("nonce")
        if not nonce:
            return 0
        order = parse_order(str(folder.read("order").get("payload", "")))
        slurm_job.cancel(order, folder)
        if isolation_of(self.node) is Isolation.ENFORCED:
            # This also finds processes that removed the mark from their environment.
            systemd_unit.kill(folder.job, folder.attempt, folder.key)
        mark = run_entry(str(nonce))
        left = [
            item.pid
            for item in process_table()
            if not item.dead
            and item.pid != os.getpid()
            and process_tree.environ_holds(item.pid, mark)
        ]
        process_tree.end_all(left)
        return len(left)


def shim_lives(folder: JobFolder) -> bool:
    """Return whether a folder's shim runs: exactly that process, not only its pid.

    The lock covers the moment before it has registered itself.
    """
    shim = folder.read("shim")
    return process_tree.alive(shim.get("pid"), shim.get("start_ticks")) or _locked(
        folder
    )


def _locked(folder: JobFolder) -> bool:
    try:
        handle = os.open(folder.lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def ask(folder: JobFolder, why: Mapping[str, object]) -> bool:
    """Store the reason, then TERM the shim. False: no shim runs."""
    if not shim_lives(folder):
        return False
    # Before the signal: a shim without a reason takes it for a shutdown, and one that
    # has not registered yet reads the reason when it begins.
    word = {"at": time.time(), **why}
    try:
        disk_space.write_with_reserve(folder.path, "stop", word)
    except OSError:
        # A full disk is no reason to continue. The previous reason is sufficient.
        if not folder.read("stop"):
            raise
    shim = folder.read("shim")
    if process_tree.alive(shim.get("pid"), shim.get("start_ticks")):
        process_tree.send(int(shim["pid"]), signal.SIGTERM)
    return True


def halt_all(node_dir: Path, *, reason: str, wait_seconds: float = 8.0) -> int:
    """End every Job of a node folder and wait for it. Return how many were left.

    For the supervisor of ``make run``, which calls this before it ends, so that nothing
    outlives it, Jobs included. Their state is ``lost``.
    """
    why = {"reason": reason, "lost": True, "grace_seconds": HALT_GRACE_SECONDS}
    folders = [item for item in job_folders(node_dir / "jobs") if ask(item, why)]
    deadline = time.monotonic() + wait_seconds
    while folders and time.monotonic() < deadline:
        time.sleep(0.05)
        folders = [item for item in folders if shim_lives(item)]
    return len(folders)
