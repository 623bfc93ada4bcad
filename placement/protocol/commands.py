"""The web's commands to a node, each as one signed text with all that the node needs.

A command has everything (argv or recipe, Gpus, Unix user, limits, deadline), so that a
node needs no database. It names its node, expires, and is idempotent by Job and
attempt. The signed form is canonical JSON (RFC 8785's rules for the values used here:
sorted keys, no spaces, ASCII escapes), so that equal commands have equal bytes. Cost:
microseconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Protocol, TypeVar, cast

from msgspec import Meta

from placement.protocol import container_images
from placement.protocol.launchers import Launcher, environment_problem
from placement.protocol.node_refusals import OrderRefused
from placement.protocol.rendezvous import MOST_NODES, Meeting, StartCheckpoint
from telemetry.protocol.codec import Malformed, decode, read_exact

VERSION = 5
SINCE: dict[int, dict[str, Any]] = {
    2: {"meeting": None, "checkpoints": [], "carry_most_bytes": 0},
    3: {"key": "", "resume_key": ""},
    4: {"slurm": None},
    5: {"unix_uid": 0, "beside_sha256": ""},
}
"""The fields that each version added, and the meaning if they are left out. A command
is written in the lowest version that can hold it, so that a node with an older worker
accepts the commands that it can carry out.
"""
PLAIN_VERSION = 3
"""Version of the commands that are not about a Job (`PlainOrder`). It changes only if
their fields do, because nodes one release behind read no other.
"""
JobKey = Annotated[str, Meta(pattern=r"\A[0-9a-f]{0,32}\Z")]
"""Part of a folder's name."""
Text = Annotated[str, Meta(pattern=r"\A[^\0]*\Z")]
"""Allowed text of a program, a path or an environment."""
VariableName = Annotated[str, Meta(pattern=r"\A[^\0=]+\Z")]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[float, Meta(ge=0, lt=2**53)]
"""Seconds, percent or Unix time."""
MAX_ORDER_BYTES = 64 * 1024
# A node whose clock differs more cannot keep deadlines, so it refuses.
MAX_CLOCK_SKEW_SECONDS = 300.0


class OrderKind(StrEnum):
    """Kind of command."""

    START = "start"
    STOP = "stop"
    CARRY = "carry"  # bring an ended Job's checkpoint to the web


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Limits of one Job; 0: none."""

    memory_bytes: Count = 0
    """Private memory of each process (RLIMIT_DATA)."""
    processes: Count = 4096
    """Processes of the Unix user (RLIMIT_NPROC). Only if the Job has a separate
    user.
    """
    open_files: Count = 65_536
    """Descriptors of each process (RLIMIT_NOFILE)."""
    file_bytes: Count = 256 * 2**30
    """Size of each file (RLIMIT_FSIZE)."""
    log_bytes: Count = 2**30
    """Size of the log. The shim ends a Job that writes more."""
    disk_bytes: Count = 0
    """Size of the Job's folder. The shim ends a Job that fills more."""
    person_bytes: Count = 0
    """Size of the folders of all Jobs of the Job's ``user`` on this node."""


@dataclass(frozen=True, slots=True)
class SlurmPlace:
    """Where Slurm runs one Job."""

    node: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{1,63}\Z")]
    reservation: Annotated[str, Meta(pattern=r"\Agp_[0-9a-z]{4,12}_[0-9]{1,18}\Z")]
    whole_node: bool = True
    """Whether it gets all GPUs, processors and memory of the node."""


@dataclass(frozen=True, slots=True)
class Order:
    """One command of the web to one node about one attempt of one Job."""

    kind: OrderKind
    node: Text
    job: Count
    attempt: Count
    nonce: Text
    issued_at: Amount
    """Unix time, like the four other instants here."""
    expires_at: Amount
    """Never after `deadline_at`."""
    deadline_at: Amount
    """The Reservation's end, at which the shim stops the Job without a command."""
    grace_seconds: Amount
    """Seconds from TERM to KILL."""
    gpu_uuids: tuple[Text, ...] = ()
    gpu_indexes: tuple[int, ...] = ()
    user: Text = ""
    """Login name in the portal, for the Job's environment."""
    unix_user: Text = ""
    argv: tuple[Text, ...] | None = None
    """Arguments after the script's own name; None for recipes."""
    recipe: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    script_sha256: Text = ""
    launcher: Launcher = Launcher.OWN
    """The program that starts the script."""
    environment_folder: Text = ""
    """First entry of the Job's PATH; "": none."""
    files_sha256: Text = ""
    """Hash of the Plan's launch files, which are fetched like the script; "": none."""
    env: Mapping[VariableName, Text] = field(default_factory=dict)
    limits: JobLimits = field(default_factory=JobLimits)
    simulated: bool = False
    claim_bytes_per_gpu: Count = 0
    """Bytes that the Job occupies on each simulated Gpu; 0 on real ones."""
    claim_util_pct: Amount = 0.0
    plan: Mapping[str, Any] = field(default_factory=dict)
    reason: Text = ""
    """Reason for the stop, for the Job's page."""
    resume_job: Count = 0
    """The Job with whose ``checkpoint`` folder this one begins; 0: none."""
    resume_attempt: Count = 0
    meeting: Meeting | None = None
    """Rendezvous of the ranks of several nodes; None: all ranks are on this node."""
    checkpoints: Annotated[
        tuple[StartCheckpoint, ...], Meta(max_length=MOST_NODES)
    ] = ()
    """Checkpoints to fetch before the start, instead of those on this node."""
    carry_most_bytes: Count = 0
    """Size of the largest checkpoint that the web accepts. Only in a command to carry
    one.
    """
    key: JobKey = ""
    """The Job's random key. After a restore the numbers of Jobs are used again, but
    keys are not; "": a Job from before keys existed.
    """
    resume_key: JobKey = ""
    """The key of ``resume_job``."""
    slurm: SlurmPlace | None = None
    """None: the node itself runs the Job."""
    unix_uid: Count = 0
    """That ``unix_user`` must have; 0: unknown."""
    beside_sha256: Text = ""
    """Hash of the files beside the script, which are fetched like it; "": none."""

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
            # Older nodes can read a command without this limit, too.
            del body["limits"]["person_bytes"]
        return _canonical(body)


def remaining_seconds(deadline_at: float, issued_at: float, now: float) -> float:
    """Return seconds until a deadline, at least 0.

    A node whose clock is behind the web's counts from the command's date, so that a
    slow clock never lengthens a Reservation.

    >>> remaining_seconds(100.0, 40.0, 30.0)
    60.0
    """
    return max(0.0, deadline_at - max(now, issued_at))


def parse_order(payload: str) -> Order:
    """Read a command and check every field.

    Raises:
        OrderRefused: ``malformed``, with the invalid field.
    """
    body = _order_body(payload)
    version = body.pop("v", None)
    if type(version) is not int or not 1 <= version <= VERSION:
        raise OrderRefused("malformed", f"not an order of version 1 to {VERSION}")
    for later in range(version + 1, VERSION + 1):
        if not body.keys() & SINCE[later].keys():
            body |= SINCE[later]
    if isinstance(limits := body.get("limits"), dict):
        # A web from before these limits sends this.
        body["limits"] = {"disk_bytes": 0, "person_bytes": 0, **limits}
    order = _read_order(Order, body, version)
    images = order.recipe == container_images.RECIPE
    if why := environment_problem(
        order.environment_folder, images=images, beside=bool(order.beside_sha256)
    ):
        raise OrderRefused("malformed", f"environment_folder {why}")
    return order


class PlainOrder:
    """A command that is not about a Job, with all its fields."""

    __slots__ = ()

    def payload(self) -> str:
        """Return the canonical JSON that is signed."""
        return _canonical({"v": PLAIN_VERSION, **asdict(cast(Any, self))})


_AnOrder = TypeVar("_AnOrder")


def parse_plain_order(kind: type[_AnOrder], payload: str) -> _AnOrder:
    """Read a command and check every field.

    Raises:
        OrderRefused: ``malformed`` with the invalid field, or what ``kind`` refuses.
    """
    body = _order_body(payload)
    if body.pop("v", None) != PLAIN_VERSION:
        raise OrderRefused("malformed", f"not an order of version {PLAIN_VERSION}")
    return _read_order(kind, body, PLAIN_VERSION)


def _canonical(body: dict[str, Any]) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _order_body(payload: str) -> dict[str, Any]:
    try:
        return decode(dict[str, Any], payload, most_bytes=MAX_ORDER_BYTES)
    except Malformed as error:
        raise OrderRefused("malformed", str(error)) from None


def _read_order(kind: type[_AnOrder], body: dict[str, Any], version: int) -> _AnOrder:
    """Return the command of a kind from a body without its version.

    Raises:
        OrderRefused: ``malformed``, with the invalid field.
    """
    try:
        return read_exact(kind, body)
    except Malformed as error:
        raise OrderRefused(
            "malformed", f"order of version {version}: {error}"
        ) from None


class Addressed(Protocol):
    """The addressee and the validity of every command."""

    @property
    def node(self) -> str:
        """Name of the addressed node."""

    @property
    def issued_at(self) -> float:
        """Unix time."""

    @property
    def expires_at(self) -> float:
        """Unix time."""


def check_order(order: Addressed, *, node: str, now: float) -> None:
    """Refuse a command that is for another node, expired, or from another time.

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
