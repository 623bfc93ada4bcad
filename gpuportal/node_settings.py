"""The settings of a node worker: its name and the addresses of the portal.

Nodes run students' code and are not trusted. So nothing of the control side is read
here: no Django, no database address, no secret key, only the variables below. The
supervisor and ``deploy/`` set them.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuportal.broker import BrokerUrlInvalid, is_unencrypted, verified_url
from gpuportal.logs.log_format import FORMATS
from telemetry import paths
from telemetry.token_files import TokenFiles

BACKENDS = ("auto", "nvml", "simulated", "none")
ISOLATIONS = ("auto", "watched", "enforced")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
# A Slug: the name is part of queue, stream and file names.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


class NodeSettingsError(ValueError):
    """A variable of the node's environment is missing or invalid."""

    def __init__(self, *, variable: str, why: str) -> None:
        self.variable = variable
        self.why = why
        super().__init__(f"{variable} {why}")


@dataclass(frozen=True)
class NodeSettings:
    """The configuration of one node worker."""

    name: str
    """Name the node was enrolled under; also its queue and stream name."""
    redis_url: str
    """Broker and streams, with the node's own ACL user in production."""
    web_url: str
    """Address of the portal's pages, without a slash at the end."""
    token_file: Path
    """File of mode 600 that holds the token of the enrolment, for the web channel. The
    short tokens are beside it.
    """
    order_key_file: Path
    """Public Ed25519 key (PEM) that verifies commands."""
    node_dir: Path
    """Folder of the node's own state: one folder per job, shim records."""
    backend: str = "auto"
    """``nvml``, ``simulated``, ``none`` (a host without GPUs, for Slurm), or ``auto``:
    NVML if a driver answers.
    """
    sim_dir: Path | None = None
    """Folder that the simulated Gpus share with the jobs on them."""
    supervisor_pid: int | None = None
    """Process of ``manage.py portal``; jobs end with it. None in production."""
    allow_scripts: bool = False
    """Whether scripts may run if jobs have no separate Unix users."""
    own_ids: bool = False
    """Whether people without a Unix user get an id of their own on this node. Only
    under ``manage.py portal``, where the portal and its one node are one machine.
    """
    isolation: str = "auto"
    """How far jobs are kept apart: ``watched``, ``enforced`` (nothing starts if that is
    impossible), or ``auto``: the best level of this node.
    """
    sshd_port: int = 0
    """Port of this node's ssh server on its loopback address, to which holders of a
    reservation are connected through the portal. 0: they are not.
    """

    log_format: str = "line"
    """The form of log lines: ``line`` for a person, ``json`` for a log store."""
    log_level: str = ""
    """The least level of log lines; empty: the worker's argument ``-l``."""

    @property
    def queue(self) -> str:
        """Celery queue of this node."""
        return f"node.{self.name}"

    @property
    def broker_url(self) -> str:
        """``redis_url`` in kombu's spelling."""
        return paths.celery_url(self.redis_url)

    def token(self) -> str:
        """Read the token that the node shows now. It is renewed while the worker runs.

        Raises:
            NodeSettingsError: the file cannot be read or is empty.
        """
        enrolment = _read("GPUPORTAL_NODE_TOKEN_FILE", self.token_file)
        short = TokenFiles(self.token_file).current(enrolment)
        return short.text if short else enrolment

    def order_key_pem(self) -> bytes:
        """Read the public key.

        Raises:
            NodeSettingsError: the file cannot be read or is empty.
        """
        return _read("GPUPORTAL_ORDER_KEY_FILE", self.order_key_file).encode()

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> "NodeSettings":
        """Build the settings from the environment.

        Raises:
            NodeSettingsError: names the invalid variable and its fault.
        """
        env = os.environ if environ is None else environ
        name = _required(env, "GPUPORTAL_NODE")
        if not _NAME.fullmatch(name):
            raise NodeSettingsError(
                variable="GPUPORTAL_NODE",
                why=f"is {name!r}: letters, digits, - and _ only, at most 63",
            )
        backend = _one_of(env, "GPUPORTAL_BACKEND", BACKENDS)
        isolation = _one_of(env, "GPUPORTAL_ISOLATION", ISOLATIONS)
        sim_dir = env.get("GPUPORTAL_SIM_DIR")
        if backend == "simulated" and not sim_dir:
            raise NodeSettingsError(
                variable="GPUPORTAL_SIM_DIR", why="is needed for simulated Gpus"
            )
        return cls(
            name=name,
            redis_url=_broker(env),
            web_url=_required(env, "GPUPORTAL_WEB_URL").rstrip("/"),
            token_file=Path(_required(env, "GPUPORTAL_NODE_TOKEN_FILE")),
            order_key_file=Path(_required(env, "GPUPORTAL_ORDER_KEY_FILE")),
            node_dir=Path(_required(env, "GPUPORTAL_NODE_DIR")),
            backend=backend,
            sim_dir=Path(sim_dir) if sim_dir else None,
            supervisor_pid=_pid(env.get("GPUPORTAL_SUPERVISOR_PID", "")),
            allow_scripts=_flag(env, "GPUPORTAL_ALLOW_SCRIPTS"),
            own_ids=_flag(env, "GPUPORTAL_OWN_IDS"),
            isolation=isolation,
            sshd_port=_port(env, "GPUPORTAL_SSHD_PORT"),
            log_format=_one_of(env, "LOG_FORMAT", FORMATS),
            log_level=_level(env),
        )


def _broker(env: Mapping[str, str]) -> str:
    url = _required(env, "GPUPORTAL_NODE_REDIS_URL")
    try:
        url = verified_url(url, ca_file=env.get("GPUPORTAL_BROKER_CA_FILE", ""))
    except BrokerUrlInvalid as error:
        raise NodeSettingsError(
            variable="GPUPORTAL_NODE_REDIS_URL", why=str(error)
        ) from error
    if is_unencrypted(url) and not _flag(env, "GPUPORTAL_BROKER_PLAIN"):
        raise NodeSettingsError(
            variable="GPUPORTAL_NODE_REDIS_URL",
            why="begins with redis://, which sends the password in the open: use "
            "rediss://, or set GPUPORTAL_BROKER_PLAIN=1 on a network of your own",
        )
    return url


def _required(env: Mapping[str, str], variable: str) -> str:
    value = env.get(variable, "").strip()
    if not value:
        raise NodeSettingsError(variable=variable, why="is not set")
    return value


def _one_of(env: Mapping[str, str], variable: str, choices: Sequence[str]) -> str:
    """Return the value of a variable. The first choice is the default."""
    value = env.get(variable) or choices[0]
    if value not in choices:
        raise NodeSettingsError(
            variable=variable, why=f"is {value!r}, not one of {', '.join(choices)}"
        )
    return value


def _level(env: Mapping[str, str]) -> str:
    value = env.get("LOG_LEVEL", "")
    if value and value not in LEVELS:
        raise NodeSettingsError(
            variable="LOG_LEVEL",
            why=f"is {value!r}, not one of {', '.join(LEVELS)}",
        )
    return value


def _flag(env: Mapping[str, str], variable: str) -> bool:
    value = env.get(variable) or "0"
    if value not in ("0", "1"):
        raise NodeSettingsError(variable=variable, why=f"is {value!r}, not 0 or 1")
    return value == "1"


def _port(env: Mapping[str, str], variable: str) -> int:
    text = env.get(variable) or "0"
    if not text.isdecimal() or not text.isascii() or not 0 <= int(text[:6]) < 65_536:
        raise NodeSettingsError(
            variable=variable, why=f"is {text!r}, not a port from 1 to 65535, or 0"
        )
    return int(text)


def _pid(text: str) -> int | None:
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise NodeSettingsError(
            variable="GPUPORTAL_SUPERVISOR_PID", why=f"is {text!r}, not a process id"
        )
    return int(text)


def _read(variable: str, path: Path) -> str:
    try:
        text = path.read_text().strip()
    except OSError as error:
        raise NodeSettingsError(
            variable=variable, why=f"names {path}: {error.strerror}"
        ) from error
    if not text:
        raise NodeSettingsError(variable=variable, why=f"names {path}, which is empty")
    return text
