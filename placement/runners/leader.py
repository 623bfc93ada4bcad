"""The Job's own first process: its command, its environment, its start.

Runs between fork and exec in the shim. What the Job sees of the portal is what
is written here and nothing else: no token, no broker, no key, no setting.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Collection, Mapping
from pathlib import Path

from placement.domain.launchers import (
    FILES,
    Launcher,
    Ranks,
    programs,
    script_command,
)
from placement.domain.orders import Order
from placement.domain.recipes import recipe_command
from placement.runners import accounts, processes
from placement.runners.accounts import Identity
from placement.runners.belongings import SCRIPT
from placement.runners.programs import checked_argv, free_port, search_path

CODE_DIR = Path(__file__).resolve().parents[2]
CANNOT_START = 126
RUN_VARIABLE = "GPUPORTAL_RUN"
CHECKPOINT = "checkpoint"
"""The folder in a Job's own one that is taken over by the Job that goes on."""
LISTENER = 3
"""The descriptor of the socket that served models are asked through."""


def run_entry(nonce: str) -> str:
    """Return the environment entry that marks every process of one run."""
    return f"{RUN_VARIABLE}={hashlib.sha256(nonce.encode()).hexdigest()[:24]}"


def command(order: Order, work: Path, files: Collection[str] = ()) -> list[str]:
    """Return argv: the recipe's, or the script with its launcher and arguments.

    A script that starts itself and has no ``#!`` line is one for the shell, as in
    every shell. A launcher is looked up when the Job's user is known.
    """
    if order.recipe is not None:
        return recipe_command(
            order.recipe,
            order.settings,
            gpu_count=len(order.gpu_uuids),
            python=sys.executable,
            plan=order.plan,
        )
    script, arguments = work / SCRIPT, order.argv or ()
    launcher = Launcher(order.launcher)
    if launcher:
        ranks = Ranks(
            gpu_uuids=order.gpu_uuids,
            simulated=order.simulated,
            folder=str(work),
            files=files,
            port=free_port(),
        )
        return script_command(launcher, str(script), arguments, ranks)
    with script.open("rb") as file:
        head = [] if file.read(2) == b"#!" else ["/bin/sh"]
    return [*head, str(script), *arguments]


def environment(
    order: Order,
    *,
    work: Path,
    identity: Identity | None,
    files: Collection[str] = (),
) -> dict[str, str]:
    """Return the whole environment of the Job."""
    home = identity.home if identity and identity.home.is_dir() else work
    name = identity.name if identity else ""
    run_name, _, run_value = run_entry(order.nonce).partition("=")
    facts = {
        "PATH": search_path(order.environment_folder),
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "GPUPORTAL_JOB": str(order.job),
        "GPUPORTAL_ATTEMPT": str(order.attempt),
        "GPUPORTAL_NODE": order.node,
        "GPUPORTAL_USER": order.user,
        "GPUPORTAL_GPUS": ",".join(order.gpu_uuids),
        "GPUPORTAL_GPU_COUNT": str(len(order.gpu_uuids)),
        "GPUPORTAL_SIMULATED": "1" if order.simulated else "0",
        "GPUPORTAL_ENDS_AT": str(int(order.deadline_at)),
        "GPUPORTAL_RESUMES_JOB": str(order.resume_job or ""),
        run_name: run_value,
        **{FILES[name]: str(work / name) for name in files},
        **_visible(order),
    }
    if name:
        facts |= {"USER": name, "LOGNAME": name}
    if order.recipe is not None:
        # Ready recipes are the portal's own code and are imported from it.
        facts |= {"PYTHONPATH": str(CODE_DIR), "OMP_NUM_THREADS": "1"}
    return {**order.env, **facts}


def _visible(order: Order) -> dict[str, str]:
    """Return what shows CUDA the reserved Gpus and no other.

    A Job on simulated Gpus must not touch a real card that happens to be there.
    """
    uuids = "" if order.simulated else ",".join(order.gpu_uuids)
    return {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": uuids,
        "NVIDIA_VISIBLE_DEVICES": uuids or "none",
    }


def become_job(
    order: Order,
    *,
    argv: list[str],
    env: Mapping[str, str],
    work: Path,
    identity: Identity | None,
    log_handle: int,
    gate: socket.socket,
    shim_pid: int,
    listener: socket.socket | None = None,
    resume: Path | None = None,
) -> None:
    """Turn the forked child into the Job. Never returns.

    Waits at the gate until the shim has registered it and claimed its Gpus; a
    gate that closes without a word means that the shim is gone or says no.
    ``listener``: what a Job that serves models accepts on, and nothing else.
    ``resume``: the checkpoint that it begins with, read as its own user.
    """
    try:
        os.setsid()
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(sig, signal.SIG_DFL)
        gate.send(b"r")
        if gate.recv(1) != b"g":
            os._exit(CANNOT_START)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log_handle, 1), (log_handle, 2)):
            os.dup2(source, target)
        if listener is not None:
            os.dup2(listener.fileno(), LISTENER)
            # Where it had that number already dup2 leaves it to be closed at exec.
            os.set_inheritable(LISTENER, True)
        os.closerange(3 if listener is None else LISTENER + 1, 4096)
        os.chdir(work)
        os.umask(0o077)
        accounts.limit(order.limits, identity)
        accounts.become(identity)
        processes.die_with_parent(shim_pid)
        argv = checked_argv(
            argv, programs(Launcher(order.launcher)), order.environment_folder
        )
        _check_reach(work, argv, identity)
        if resume is not None:
            _take_over(resume, work / CHECKPOINT, order.resume_job)
        os.execve(argv[0], argv, dict(env))
    except OSError as error:
        _say(f"gpuportal: {argv[0]} cannot start: {error}\n")
    except BaseException:
        _say("gpuportal: the Job cannot start\n" + traceback.format_exc())
    os._exit(CANNOT_START)


def _take_over(source: Path, target: Path, job: int) -> None:
    """Copy a checkpoint; without it the Job begins anew, and its log says so.

    Links stay links: this runs as the Job's own user, and reads what that may read.
    """
    try:
        shutil.copytree(source, target, symlinks=True)
    except (OSError, shutil.Error) as error:
        shutil.rmtree(target, ignore_errors=True)
        why = "it left none on this node" if not source.exists() else str(error)[:200]
        _say(f"gpuportal: no checkpoint of job {job}: {why}; begins anew\n")
        return
    _say(f"gpuportal: goes on from the checkpoint of job {job}\n")


def _check_reach(work: Path, argv: list[str], identity: Identity | None) -> None:
    if identity is None:
        return
    for path in (work, Path(argv[0])):
        if not os.access(path, os.X_OK):
            raise PermissionError(
                f"Unix user {identity.name} cannot reach {path}: a folder above it is "
                "closed to other users"
            )


def _say(text: str) -> None:
    os.write(2, text.encode(errors="replace"))
