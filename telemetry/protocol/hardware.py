"""The hardware of a node: its Gpus and the Links between them.

These facts change when a person opens the machine, not every second. A node sends them
as a *roster* when it starts, when they change, and every 30 s. `NodeInfo.to_message()`
writes a roster and `from_message()` reads it. `from_message()` trusts nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from telemetry.protocol.codec import Line, encode
from telemetry.protocol.errors import MessageRefused
from telemetry.protocol.message import MESSAGE_MOST_BYTES, NodeMessage, read_as
from telemetry.protocol.units import GIB_BYTES, TIB_BYTES

MOST_GPUS = 64
"""Gpus (MIG instances included) in one node. NVSwitch nodes have 16 boards."""
MOST_EXTRAS = 16
MOST_RELEASE = 40
MOST_INDEX = 1023
MOST_LINKS = MOST_GPUS * (MOST_GPUS - 1) // 2
MOST_MAJOR = 2**12 - 1
MOST_MINOR = 2**20 - 1
"""The kernel's device numbers have 12 and 20 bits (``include/linux/kdev_t.h``)."""
MOST_DEVICES = 8
"""Device files of one Gpu."""
MOST_MEMORY_BYTES = 4 * TIB_BYTES
MOST_HOST_BYTES = 64 * TIB_BYTES
"""Memory of a machine: the largest servers have 32 TiB."""
MOST_DISK_BYTES = 2**60
"""Free bytes of a file system. A network drive can be this large."""
MOST_WATTS = 10_000.0
MOST_CELSIUS = 200.0
MOST_MHZ = 20_000
NAME_LENGTH = 80
UUID_LENGTH = 80

GpuUuid = Annotated[Line, Meta(min_length=1, max_length=UUID_LENGTH)]
Name = Annotated[Line, Meta(max_length=NAME_LENGTH)]
Watts = Annotated[float, Meta(ge=0, le=MOST_WATTS)]
Megahertz = Annotated[int, Meta(ge=0, le=MOST_MHZ)]
MemoryBytes = Annotated[int, Meta(ge=0, le=MOST_MEMORY_BYTES)]
DeviceNumber = tuple[
    Annotated[int, Meta(ge=0, le=MOST_MAJOR)], Annotated[int, Meta(ge=0, le=MOST_MINOR)]
]
"""Major and minor number of a device file."""
Pairs = Annotated[tuple[tuple[str, str], ...], Meta(max_length=MOST_LINKS)]
"""UUIDs of two Gpus each."""

NODE_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
"""A slug of at most 63 characters, because it is part of stream and file names."""


UNNAMED = "unnamed"
"""Name of a card that does not report its name."""


class LinkKind(StrEnum):
    """The connection of two Gpus, best first (names of `nvidia-smi topo -m`)."""

    NVLINK = "nvlink"
    PIX = "pix"
    """At most one PCIe bridge between them."""
    PXB = "pxb"
    """Several PCIe bridges, no CPU."""
    PHB = "phb"
    """Through one CPU's PCIe host bridge."""
    NODE = "node"
    """Several host bridges of one NUMA node."""
    SYS = "sys"
    """Across the sockets' interconnect."""


class Backend(StrEnum):
    """The source of a node's readings."""

    NVML = "nvml"
    SIMULATED = "simulated"
    NONE = "none"
    """The machine has no GPUs. It submits jobs to Slurm."""


class Isolation(StrEnum):
    """How far jobs of a node are kept apart."""

    NONE = "none"
    """No separate Unix user."""
    WATCHED = "watched"
    """Each student's own Unix user."""
    ENFORCED = "enforced"
    """Own user and a list of devices."""


class NotIsolated(StrEnum):
    """Why a node does not keep jobs apart."""

    UNKNOWN = ""
    """It keeps them apart, or its worker is older than this reason."""
    NOT_ROOT = "not-root"
    """Its worker does not run as root."""
    PORTAL = "portal"
    """`manage.py portal` started it, without a Unix user id for each person."""
    SCRIPTS = "scripts"
    """GPUPORTAL_ALLOW_SCRIPTS lets jobs run without a separate Unix user."""
    UNITS = "units"
    """`enforced` is wanted, and systemd cannot run each job in its own unit."""


class Link(Struct, frozen=True):
    """Connection between two Gpus of one node; `a` and `b` are UUIDs."""

    a: str
    b: str
    kind: LinkKind


class GpuInfo(Struct, frozen=True):
    """One card or MIG instance that can be booked. `None`: the card cannot report
    it.
    """

    uuid: GpuUuid
    """NVML UUID: the identity. Never the index, which may change at a reboot."""
    index: Annotated[int, Meta(ge=0, le=MOST_INDEX)]
    """NVML index at the last look, for people."""
    name: Annotated[Name, Meta(min_length=1)]
    gpu_class: Annotated[Name, Meta(min_length=1)]
    """Key of the pool: the name without vendor words, see `gpu_class_of`."""
    memory_total_bytes: MemoryBytes
    """0: the card cannot report it."""
    power_limit_watts: Watts | None = None
    slowdown_celsius: Annotated[float, Meta(ge=0, le=MOST_CELSIUS)] | None = None
    """Temperature at which this model reduces its clocks."""
    shutdown_celsius: Annotated[float, Meta(ge=0, le=MOST_CELSIUS)] | None = None
    """Temperature at which it switches itself off."""
    power_limit_min_watts: Watts | None = None
    """Limits within which an operator may set it."""
    power_limit_max_watts: Watts | None = None
    sm_clock_max_mhz: Megahertz | None = None
    memory_clock_max_mhz: Megahertz | None = None
    pcie_gen_max: Annotated[int, Meta(ge=0, le=10)] | None = None
    """The highest generation of card and slot together."""
    pcie_width_max: Annotated[int, Meta(ge=0, le=64)] | None = None
    pci_bus_id: Annotated[Line, Meta(max_length=32)] = ""
    """For people who open the machine."""
    serial: Annotated[Line, Meta(max_length=40)] = ""
    compute_capability: Annotated[Line, Meta(max_length=8)] = ""
    """CUDA compute capability such as "8.0"; "" if unknown."""
    mig_parent: Annotated[Line, Meta(max_length=UUID_LENGTH)] = ""
    """UUID of the card that this MIG instance is part of; "" for a whole card."""
    mig_instance: Annotated[int, Meta(ge=0, le=MOST_INDEX)] | None = None
    """Number of this GPU instance within its card."""
    mig: bool = False
    """Whether the card is split. Then it cannot be booked as a whole."""
    lost: bool = False
    """The driver does not find it (any more)."""
    device_numbers: Annotated[
        tuple[DeviceNumber, ...], Meta(max_length=MOST_DEVICES)
    ] = ()
    """The device files that its processes open; (): unknown."""


class HostCapacity(Struct, frozen=True):
    """Memory and disk of a machine itself. `None`: it cannot say."""

    memory_total_bytes: Annotated[int, Meta(ge=0, le=MOST_HOST_BYTES)] | None = None
    memory_free_bytes: Annotated[int, Meta(ge=0, le=MOST_HOST_BYTES)] | None = None
    """Bytes that programs can take without swapping (`MemAvailable`)."""
    disk_free_bytes: Annotated[int, Meta(ge=0, le=MOST_DISK_BYTES)] | None = None
    """Free bytes of the file system where jobs work."""


class NodeInfo(Struct, frozen=True):
    """A node's roster: its hardware and the source of its readings."""

    node: str
    """Name of the node. Not part of the message, because the stream's name has it."""
    backend: Backend
    gpus: tuple[GpuInfo, ...]
    links: tuple[Link, ...] = ()
    links_known: bool = True
    """False while the driver is still queried for the connections of the Gpus."""
    driver_version: str = ""
    cuda_version: str = ""
    boot_id: str = ""
    """Changes with every start of the machine: "missing after reboot"."""
    isolation: Isolation = Isolation.NONE
    not_isolated: NotIsolated = NotIsolated.UNKNOWN
    extras: tuple[str, ...] = ()
    """Optional packages that the worker's environment has, of `extras.KNOWN`."""
    host: HostCapacity | None = None
    """None: an older node, which does not measure it."""
    release: str = ""
    """Release of the worker's code; "": an older node, which does not report it."""

    @property
    def fast_links(self) -> tuple[tuple[str, str], ...]:
        """Return the pairs of UUIDs joined by NVLink."""
        return tuple((x.a, x.b) for x in self.links if x.kind is LinkKind.NVLINK)

    def to_message(self, *, at: float) -> bytes:
        """Return the roster as compact JSON. `at`: the node's clock, Unix seconds.

        NVLink pairs are in `fast_links`, all others in `links` with their distance. If
        both are too large for a reader, only the NVLink pairs are sent.
        """
        message = RosterMessage(
            v=1,
            at=at,
            backend=self.backend,
            gpus=self.gpus,
            driver_version=self.driver_version,
            cuda_version=self.cuda_version,
            boot_id=self.boot_id,
            isolation=self.isolation,
            not_isolated=self.not_isolated,
            extras=self.extras,
            host=self.host,
            release=self.release,
            fast_links=self.fast_links,
            links_unknown=not self.links_known,
        )
        if not self.links_known:
            return encode(message)
        slow = (x for x in self.links if x.kind is not LinkKind.NVLINK)
        whole = replace(message, links=tuple((x.a, x.b, x.kind) for x in slow))
        data = encode(whole)
        return data if len(data) <= MESSAGE_MOST_BYTES else encode(message)

    @classmethod
    def from_message(cls, data: bytes | str, *, node: str = "") -> NodeInfo:
        """Read a roster. Raises MessageRefused with the invalid field."""
        return read_as(RosterMessage, data).value(node)


class RosterMessage(NodeMessage, frozen=True, kw_only=True, tag="roster"):
    """A roster as it is sent."""

    backend: Backend
    gpus: Annotated[tuple[GpuInfo, ...], Meta(max_length=MOST_GPUS)] = ()
    driver_version: Annotated[Line, Meta(max_length=40)] = ""
    cuda_version: Annotated[Line, Meta(max_length=20)] = ""
    boot_id: Annotated[Line, Meta(max_length=40)] = ""
    isolation: Isolation = Isolation.NONE
    not_isolated: NotIsolated = NotIsolated.UNKNOWN
    extras: Annotated[
        tuple[Annotated[Line, Meta(max_length=40)], ...], Meta(max_length=MOST_EXTRAS)
    ] = ()
    host: HostCapacity | None = None
    release: Annotated[Line, Meta(max_length=MOST_RELEASE)] = ""
    fast_links: Pairs = ()
    links: (
        Annotated[tuple[tuple[str, str, LinkKind], ...], Meta(max_length=MOST_LINKS)]
        | UnsetType
    ) = UNSET
    """All but NVLinks. Missing: unknown, too many, or sent by an older node."""
    links_unknown: bool = False

    def value(self, node: str) -> NodeInfo:
        """Return the roster of a node.

        Raises:
            MessageRefused: a UUID twice, or one that is not in the roster.
        """
        uuids = uuids_of(self.gpus)
        if any(gpu.mig_parent and gpu.mig_parent not in uuids for gpu in self.gpus):
            raise MessageRefused(
                field="gpus", why="an instance of a card that is not in the roster"
            )
        return NodeInfo(
            node=node,
            backend=self.backend,
            gpus=self.gpus,
            links=links_of(self.fast_links, self.links or (), uuids),
            links_known=not self.links_unknown,
            driver_version=self.driver_version,
            cuda_version=self.cuda_version,
            boot_id=self.boot_id,
            isolation=self.isolation,
            not_isolated=self.not_isolated,
            extras=self.extras,
            host=self.host,
            release=self.release,
        )


def uuids_of(gpus: Collection[GpuInfo]) -> set[str]:
    """Return the UUIDs of a roster. Raises MessageRefused if one is there twice."""
    uuids = {gpu.uuid for gpu in gpus}
    if len(uuids) != len(gpus):
        raise MessageRefused(field="gpus", why="a UUID appears twice")
    return uuids


def links_of(
    fast: Iterable[tuple[str, str]],
    slow: Iterable[tuple[str, str, LinkKind]],
    uuids: Collection[str],
) -> tuple[Link, ...]:
    """Return one Link per pair. NVLink wins if a pair is in both lists.

    Raises:
        MessageRefused: a pair is not of two Gpus of the roster.
    """
    found: dict[frozenset[str], Link] = {}
    for field, links in (
        ("fast_links", [Link(a, b, LinkKind.NVLINK) for a, b in fast]),
        ("links", [Link(*link) for link in slow]),
    ):
        for link in links:
            if link.a == link.b or link.a not in uuids or link.b not in uuids:
                raise MessageRefused(
                    field=field, why="not between two Gpus of this roster"
                )
            found.setdefault(frozenset((link.a, link.b)), link)
    return tuple(found.values())


_VENDOR_WORDS = re.compile(r"^(NVIDIA|Tesla|Quadro|GeForce)\s+")


def gpu_class_of(name: str, memory_total_bytes: int) -> str:
    """Return the pool key of a card: its name without vendor words, with its memory.

    Cards of one name exist with different memories (A100 40 and 80 GB), and boards of
    one chip under different names. Both affect what fits, so both are in the key.
    Memory is rounded to whole GiB as NVML reports it.

    >>> gpu_class_of("NVIDIA A100-SXM4-80GB", 85_899_345_920)
    'A100-SXM4-80GB'
    >>> gpu_class_of("NVIDIA GeForce RTX 3090", 25_769_803_776)
    'RTX 3090 24GB'
    """
    short = name.strip()
    while _VENDOR_WORDS.match(short):
        short = _VENDOR_WORDS.sub("", short)
    if re.search(r"\d+ ?G[Bi]", short):
        return short[:NAME_LENGTH]
    gib = round(memory_total_bytes / GIB_BYTES)
    return f"{short[: NAME_LENGTH - 8]} {gib}GB" if gib else short[:NAME_LENGTH]
