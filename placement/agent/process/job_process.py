"""The Job's own first process: its command, its environment, its start.

Runs between fork and exec in the shim. The Job gets from the portal only what is
written here: no token, no broker, no key, no setting.
"""

from __future__ import annotations

import hashlib
import math
import os
import signal
import socket
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from placement.agent.job_folder import RESULTS
from placement.agent.process import rank_rendezvous
from placement.agent.process.environment_cache import CACHE
from placement.agent.process.job_exec import SCRIPT, JobStart, write_log
from placement.agent.process.program_lookup import SYSTEM_PATH, free_port
from placement.agent.process.unix_user import UnixIdentity
from placement.agent.storage.person_home import ENVIRONMENTS, person_folder
from placement.agent.storage.results_reader import NotThere, open_inside
from placement.planner.launch.recipes import recipe_command
from placement.protocol.commands import Order
from placement.protocol.job_lifecycle import CANNOT_START
from placement.protocol.launchers import (
    FILES,
    Launcher,
    LaunchPlace,
    script_command,
    sent_requirements,
)
from placement.protocol.node_refusals import OrderRefused
from telemetry.protocol.codec import encode

CODE_DIR = Path(__file__).resolve().parents[3]
RUN_VARIABLE = "GPUPORTAL_RUN"
PRIVATE_TMP = "tmp"
"""The folder for a Job's temporary files, beside its own one. In a unit it is /tmp and
/var/tmp, elsewhere the variables of TMP_VARIABLES name it.
"""
TMP_VARIABLES = ("TMPDIR", "TMP", "TEMP")
MOST_TMP_CHARACTERS = 72
"""A longer path is not used. The address of a Unix socket has 107 characters (unix(7)),
and Python's multiprocessing adds 32 to the path of this folder:
``/pymp-xxxxxxxx/listener-xxxxxxxx``.
"""
BY_TORCHRUN = (Launcher.TORCHRUN, Launcher.ACCELERATE)
SITE_CACHE = "GPUPORTAL_HF_HOME"
"""Variable with the Hugging Face cache of the site, which all users may read."""
LISTENER = 3
"""The descriptor of the socket through which served models are called."""


def run_entry(nonce: str) -> str:
    """Return the environment entry that marks every process of one run."""
    return f"{RUN_VARIABLE}={hashlib.sha256(nonce.encode()).hexdigest()[:24]}"


def command(order: Order, work: Path, files: Collection[str] = ()) -> list[str]:
    """Return argv: the recipe's, or the script with its launcher and arguments.

    As in every shell, a script that starts itself without a ``#!`` line is run by the
    shell. A launcher is looked up when the Job's user is known.

    Raises:
        OrderRefused: ``script``, if it is no longer a regular file.
    """
    if order.recipe is not None:
        return recipe_command(
            order.recipe,
            order.settings,
            gpu_count=len(order.gpu_uuids),
            python=sys.executable,
            plan=order.plan,
            world=order.meeting.world if order.meeting else 0,
        )
    script, arguments = work / SCRIPT, order.argv or ()
    launcher = Launcher(order.launcher)
    if launcher:
        ranks = LaunchPlace(
            gpu_uuids=order.gpu_uuids,
            simulated=order.simulated,
            folder=str(work),
            files=files,
            port=free_port(),
            meeting=order.meeting,
        )
        return script_command(launcher, str(script), arguments, ranks)
    try:
        # The student may have changed the folder: no link is followed, no pipe waited
        # for.
        with os.fdopen(open_inside(str(work), SCRIPT), "rb") as file:
            head = [] if file.read(2) == b"#!" else ["/bin/sh"]
    except NotThere as error:
        raise OrderRefused("script", f"the script was replaced: {error}") from error
    return [*head, str(script), *arguments]


def environment(
    order: Order,
    *,
    work: Path,
    identity: UnixIdentity | None,
    files: Collection[str] = (),
    web_url: str = "",
    tmp: Path | None = None,
    home: Path | None = None,
) -> dict[str, str]:
    """Return the whole environment of the Job.

    Args:
        home: of a person who has none on the node. None: the Job's own folder.
        tmp: the folder of its temporary files. None: it has a private /tmp.
    """
    home = identity.home if identity and identity.has_home else home or work
    name = identity.name if identity else ""
    run_name, _, run_value = run_entry(order.nonce).partition("=")
    facts = {
        "PATH": SYSTEM_PATH,  # JobStart puts the environment before it
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        "GPUPORTAL_JOB": str(order.job),
        "GPUPORTAL_ATTEMPT": str(order.attempt),
        "GPUPORTAL_NODE": order.slurm.node if order.slurm else order.node,
        "GPUPORTAL_USER": order.user,
        "GPUPORTAL_GPUS": ",".join(order.gpu_uuids),
        "GPUPORTAL_GPU_COUNT": str(len(order.gpu_uuids)),
        "GPUPORTAL_SIMULATED": "1" if order.simulated else "0",
        "GPUPORTAL_ENDS_AT": str(int(order.deadline_at)),
        "GPUPORTAL_RESUMES_JOB": str(order.resume_job or ""),
        "GPUPORTAL_RESULTS": str(work / RESULTS),
        run_name: run_value,
        **{FILES[name]: str(work / name) for name in files},
        **_visible(order),
    }
    if order.recipe is not None or order.launcher in BY_TORCHRUN:
        # It would kill ranks 30 s after TERM, but the shim knows when that is due.
        seconds = math.ceil(order.grace_seconds) + 1
        facts["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(seconds)
    if order.meeting is not None:
        facts |= rank_rendezvous.environment(order.meeting, web_url)
        if order.launcher == Launcher.PYTHON:
            facts |= rank_rendezvous.only_rank(order.meeting)
    if tmp is not None and len(os.fsencode(tmp)) <= MOST_TMP_CHARACTERS:
        facts |= dict.fromkeys(TMP_VARIABLES, str(tmp))
    if name:
        facts |= {"USER": name, "LOGNAME": name}
    if cache := os.environ.get(SITE_CACHE):
        facts[SITE_CACHE] = cache
    if order.recipe is not None:
        # Ready recipes are the portal's own code and are imported from it.
        facts |= {"PYTHONPATH": str(CODE_DIR), "OMP_NUM_THREADS": "1"}
    return {**order.env, **facts}


def _visible(order: Order) -> dict[str, str]:
    """Return the variables that show CUDA the reserved Gpus only.

    A Job on simulated Gpus must not use a real card of the machine. Slurm sets its own
    variables.
    """
    if order.slurm is not None:
        return {}
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
    identity: UnixIdentity | None,
    log_handle: int,
    gate: socket.socket,
    shim_pid: int,
    listener: socket.socket | None = None,
    resume: Path | None = None,
    unit: Sequence[str] = (),
) -> None:
    """Turn the forked child into the Job. Never returns.

    Waits at the gate until the shim has registered it and claimed its Gpus. A gate that
    closes without a word means that the shim is gone or refuses. ``listener``: the
    socket of a Job that serves models. ``resume``: the checkpoint to load, read as its
    own user. ``unit``: the command of the systemd unit in which it runs. Empty: no
    unit.
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
            # If it already had that number, dup2 leaves it to be closed at exec.
            os.set_inheritable(LISTENER, True)
        os.closerange(3 if listener is None else LISTENER + 1, 4096)
        begin = JobStart(
            argv=tuple(argv),
            env=dict(env),
            work=work,
            identity=identity,
            limits=order.limits,
            shim_pid=shim_pid,
            launcher=order.launcher,
            environment_folder=_environment_folder(order, work),
            environments=_environments(order, work, identity),
            resume=resume,
            resume_job=order.resume_job,
            private_tmp=work.parent / PRIVATE_TMP if unit else None,
            slurm=order if order.slurm else None,
        )
        if unit:
            _enter(unit, begin, mark=run_entry(order.nonce))
        begin.run()
    except OSError as error:
        write_log(f"gpuportal: {argv[0]} cannot start: {error}\n")
    except BaseException:
        write_log("gpuportal: the job cannot start\n" + traceback.format_exc())
    os._exit(CANNOT_START)


def _environment_folder(order: Order, work: Path) -> str:
    """Return the Job's environment, with the path of a file beside its script."""
    if path := sent_requirements(order.environment_folder):
        return str(work / path)
    return order.environment_folder


def _environments(
    order: Order, work: Path, identity: UnixIdentity | None
) -> Path | None:
    """Return the folder of the environments that the node builds for a Job's owner.

    It is in the owner's home, or, for a person without a home, beside the node's jobs.
    None for a recipe, which brings its own programs, and in Slurm, where the node that
    starts the Job is not the one that runs it.

    Raises:
        OSError: the folder cannot be made.
    """
    if order.recipe is not None or order.slurm is not None:
        return None
    if not _environment_folder(order, work).startswith("/"):
        return None
    if identity is not None and identity.has_home:
        return identity.home / CACHE
    return person_folder(work.parents[2], ENVIRONMENTS, order, identity)


def _enter(unit: Sequence[str], begin: JobStart, *, mark: str) -> NoReturn:
    """Continue inside a systemd unit. The same process reads its task on stdin."""
    told = os.memfd_create("begin")
    os.write(told, encode(begin))
    os.lseek(told, 0, os.SEEK_SET)
    os.dup2(told, 0)
    name, _, value = mark.partition("=")
    env = {"PATH": SYSTEM_PATH, "PYTHONPATH": str(CODE_DIR), name: value}
    os.chdir("/")
    os.execve(unit[0], list(unit), env)
