"""What the web tells a node to do: all the node needs, as one signed text.

An order carries everything (argv or recipe, Gpus, Unix user, limits, deadline),
so that a node needs no database; it names its node, expires, and is idempotent
by Job and attempt. The signed form is canonical JSON (RFC 8785's rules for the
values used here: sorted keys, no spaces, ASCII escapes), so that equal orders
have equal bytes. Cost: microseconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from typing import Any, Protocol

from placement.planner.values.errors import OrderRefused
from placement.protocol.launchers import Launcher, folder_problem
from placement.protocol.rendezvous import (
    Meeting,
    StartCheckpoint,
    checkpoints_of,
    meeting_of,
)

VERSION = 3
SINCE: dict[int, dict[str, Any]] = {
    2: {"meeting": None, "checkpoints": [], "carry_most_bytes": 0},
    3: {"key": "", "resume_key": ""},
}
"""What each version added, and what leaving it out means. An order is written in the
lowest version that holds it: a node whose worker is older takes what it can do."""
KEY = re.compile(r"[0-9a-f]{0,32}")
MAX_ORDER_BYTES = 64 * 1024
# A node whose clock is further off cannot keep deadlines: refused, not guessed.
MAX_CLOCK_SKEW_SECONDS = 300.0


class OrderKind(StrEnum):
    """What to do."""

    START = "start"
    STOP = "stop"
    CARRY = "carry"  # bring an ended Job's checkpoint to the web


@dataclass(frozen=True)
class JobLimits:
    """Ceilings on one Job; 0: none."""

    memory_bytes: int = 0
    """Private memory of each process (RLIMIT_DATA)."""
    processes: int = 4096
    """Processes of the Unix user (RLIMIT_NPROC); only with a user of its own."""
    open_files: int = 65_536
    """Descriptors of each process (RLIMIT_NOFILE)."""
    file_bytes: int = 256 * 2**30
    """Size of each file (RLIMIT_FSIZE)."""
    log_bytes: int = 2**30
    """Size of the log; the shim ends a Job that writes more."""
    disk_bytes: int = 0
    """What the Job's folder may hold; the shim ends a Job that fills more."""
    person_bytes: int = 0
    """What the folders of all Jobs of the Job's ``user`` may hold on this node."""

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise OrderRefused(
                    "malformed", f"limits.{item.name} is no count: {value!r:.40}"
                )


@dataclass(frozen=True)
class Order:
    """One order of the web to one node about one attempt of one Job."""

    kind: OrderKind
    node: str
    job: int
    attempt: int
    nonce: str
    issued_at: float
    """Unix time, as the four other instants here."""
    expires_at: float
    """Never after `deadline_at`."""
    deadline_at: float
    """The Reservation's end: the shim stops the Job then, by itself."""
    grace_seconds: float
    """From TERM to KILL."""
    gpu_uuids: tuple[str, ...] = ()
    gpu_indexes: tuple[int, ...] = ()
    user: str = ""
    """Login name in the portal, for the Job's own environment."""
    unix_user: str = ""
    argv: tuple[str, ...] | None = None
    """Arguments after the script's own name; None for recipes."""
    recipe: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    script_sha256: str = ""
    launcher: str = ""
    """A ``Launcher`` of the script."""
    environment_folder: str = ""
    """First on the Job's PATH; "": none."""
    files_sha256: str = ""
    """Of the Plan's launch files, fetched like the script; "": none."""
    env: Mapping[str, str] = field(default_factory=dict)
    limits: JobLimits = field(default_factory=JobLimits)
    simulated: bool = False
    claim_bytes_per_gpu: int = 0
    """What the Job occupies on each simulated Gpu; 0 on real ones."""
    claim_util_pct: float = 0.0
    plan: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    """Why to stop, for the Job's page."""
    resume_job: int = 0
    """The Job whose ``checkpoint`` folder it begins with; 0: none."""
    resume_attempt: int = 0
    meeting: Meeting | None = None
    """How the ranks of several nodes meet; None: all are on this one."""
    checkpoints: tuple[StartCheckpoint, ...] = ()
    """Fetched before the start, instead of what lies on this node."""
    carry_most_bytes: int = 0
    """The largest checkpoint that the web takes; of an order to carry."""
    key: str = ""
    """The Job's own random key. After a restore numbers are given again, keys are
    not; "": a Job from before there were keys."""
    resume_key: str = ""
    """The same of ``resume_job``."""

    def __post_init__(self) -> None:
        if self.expires_at > self.deadline_at and self.kind is OrderKind.START:
            raise OrderRefused(
                "malformed", "the order would outlive the Reservation's end"
            )
        if len(self.gpu_uuids) != len(self.gpu_indexes):
            raise OrderRefused("malformed", "as many Gpu indexes as UUIDs are needed")
        meeting = self.meeting
        if meeting and meeting.counts[meeting.node_rank] != len(self.gpu_uuids):
            raise OrderRefused("malformed", "as many Gpus as processes are needed")

    def payload(self) -> str:
        """Return the canonical JSON that is signed."""
        body, version = asdict(self), VERSION
        while version > 1 and not any(body[name] for name in SINCE[version]):
            body = {name: body[name] for name in body if name not in SINCE[version]}
            version -= 1
        body["v"] = version
        if not self.limits.person_bytes:
            # An order without this limit is read by older nodes too.
            del body["limits"]["person_bytes"]
        return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def remaining_seconds(deadline_at: float, issued_at: float, now: float) -> float:
    """Return seconds until a deadline, at least 0.

    A node whose clock is behind the web's counts from the order's own date, so
    that a slow clock never lengthens a Reservation.

    >>> remaining_seconds(100.0, 40.0, 30.0)
    60.0
    """
    return max(0.0, deadline_at - max(now, issued_at))


_NUMBERS = ("issued_at", "expires_at", "deadline_at", "grace_seconds", "claim_util_pct")
_TEXTS = (
    *("node", "nonce", "user", "unix_user", "script_sha256", "reason"),
    *("launcher", "environment_folder", "files_sha256", "key", "resume_key"),
)
_COUNTS = (
    "job",
    "attempt",
    "claim_bytes_per_gpu",
    "resume_job",
    "resume_attempt",
    "carry_most_bytes",
)


def parse_order(payload: str) -> Order:
    """Read an order back; every field is checked.

    Raises:
        OrderRefused: ``malformed``, with the field that is wrong.
    """
    if len(payload.encode()) > MAX_ORDER_BYTES:
        raise OrderRefused("malformed", f"larger than {MAX_ORDER_BYTES} bytes")
    try:
        body = json.loads(payload)
    except ValueError as error:
        raise OrderRefused("malformed", "not JSON") from error
    version = body.pop("v", None) if isinstance(body, dict) else None
    if not isinstance(version, int) or not 1 <= version <= VERSION:
        raise OrderRefused("malformed", f"not an order of version 1 to {VERSION}")
    for later in range(version + 1, VERSION + 1):
        if not body.keys() & SINCE[later].keys():
            body |= SINCE[later]
    known = {item.name for item in fields(Order)}
    strange = sorted(set(body) - known)
    missing = sorted(known - set(body))
    if strange or missing:
        raise OrderRefused(
            "malformed",
            f"version {version}: unknown fields {strange}, missing fields {missing}",
        )
    _check_scalars(body)
    return Order(
        **{
            **body,
            "kind": _kind(body["kind"]),
            "gpu_uuids": _tuple_of(body, "gpu_uuids", str),
            "gpu_indexes": _tuple_of(body, "gpu_indexes", int),
            "argv": None if body["argv"] is None else _tuple_of(body, "argv", str),
            "limits": _limits(body["limits"]),
            "env": _env(body["env"]),
            "meeting": meeting_of(body["meeting"]),
            "checkpoints": checkpoints_of(body["checkpoints"]),
        }
    )


class Addressed(Protocol):
    """What every order says of where and when it holds."""

    @property
    def node(self) -> str:
        """The node it is for."""

    @property
    def issued_at(self) -> float:
        """Unix time."""

    @property
    def expires_at(self) -> float:
        """Unix time."""


def check_order(order: Addressed, *, node: str, now: float) -> None:
    """Refuse an order that is for another node, stale, or from another time.

    Raises:
        OrderRefused: ``other_node``, ``expired`` or ``clock``.
    """
    if order.node != node:
        raise OrderRefused("other-node", f"the order is for {order.node}, not {node}")
    if order.issued_at - now > MAX_CLOCK_SKEW_SECONDS:
        raise OrderRefused(
            "clock",
            f"this node's clock is {order.issued_at - now:.0f} s behind the web's",
        )
    if now >= order.expires_at:
        raise OrderRefused(
            "expired", f"the order expired {now - order.expires_at:.0f} s ago"
        )


def _kind(word: object) -> OrderKind:
    try:
        return OrderKind(word)  # type: ignore[arg-type]
    except ValueError as error:
        raise OrderRefused("malformed", f"unknown kind {word!r:.40}") from error


def _check_scalars(body: Mapping[str, Any]) -> None:
    for name in _NUMBERS:
        value = body[name]
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not 0 <= value < 2**53:  # NaN too
            raise OrderRefused("malformed", f"{name} is no time or amount")
    for name in _TEXTS:
        if not isinstance(body[name], str) or "\0" in body[name]:
            raise OrderRefused("malformed", f"{name} is no text")
    for name in _COUNTS:
        value = body[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise OrderRefused("malformed", f"{name} is no count")
    for name in ("key", "resume_key"):
        if not KEY.fullmatch(body[name]):  # it is part of a folder's name
            raise OrderRefused("malformed", f"{name} is no key")
    if body["launcher"] not in list(Launcher):
        raise OrderRefused("malformed", "launcher is none that there is")
    if why := folder_problem(body["environment_folder"]):
        raise OrderRefused("malformed", f"environment_folder {why}")
    if body["recipe"] is not None and not isinstance(body["recipe"], str):
        raise OrderRefused("malformed", "recipe is no name")
    if not isinstance(body["simulated"], bool):
        raise OrderRefused("malformed", "simulated is neither true nor false")
    for name in ("settings", "plan"):
        if not isinstance(body[name], dict):
            raise OrderRefused("malformed", f"{name} is no object")


def _tuple_of(body: Mapping[str, Any], name: str, kind: type) -> tuple[Any, ...]:
    values = body[name]
    if not isinstance(values, list) or not all(
        isinstance(value, kind) and not isinstance(value, bool) for value in values
    ):
        raise OrderRefused("malformed", f"{name} is no list of {kind.__name__}")
    if kind is str and any("\0" in value for value in values):
        raise OrderRefused("malformed", f"{name} holds a zero byte")
    return tuple(values)


def _limits(body: object) -> JobLimits:
    known = {item.name for item in fields(JobLimits)}
    if isinstance(body, dict):
        # What a web of before these limits sends.
        body = {"disk_bytes": 0, "person_bytes": 0, **body}
    if not isinstance(body, dict) or set(body) != known:
        raise OrderRefused("malformed", f"limits must hold exactly {sorted(known)}")
    return JobLimits(**body)


def _env(body: object) -> dict[str, str]:
    if not isinstance(body, dict):
        raise OrderRefused("malformed", "env is no object")
    for name, value in body.items():
        if (
            not isinstance(value, str)
            or "\0" in value + name
            or "=" in name
            or not name
        ):
            raise OrderRefused("malformed", f"env.{name!r:.40} cannot be set")
    return body
