"""What a node is made of: Gpus and the Links between them.

These facts change when somebody opens the machine, not every second: a node
sends them as a *roster* when it starts, when they change, and every 30 s.
`NodeInfo.to_message()` and `from_message()` are the two ends of that; the
latter believes nothing.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from telemetry.protocol.fields import (
    LATEST_AT,
    MESSAGE_MOST_BYTES,
    MESSAGE_VERSION,
    Fields,
    dump_object,
    load_message,
)
from telemetry.protocol.units import GIB_BYTES, TIB_BYTES

MOST_GPUS = 64
"""Gpus (MIG instances included) in one node; NVSwitch nodes have 16 boards."""
MOST_EXTRAS = 16
MOST_LINKS = MOST_GPUS * (MOST_GPUS - 1) // 2
MOST_MEMORY_BYTES = 4 * TIB_BYTES
MOST_WATTS = 10_000.0
MOST_CELSIUS = 200.0
MOST_MHZ = 20_000
NAME_LENGTH = 80
UUID_LENGTH = 80

NODE_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
"""A slug of at most 63 characters: it becomes part of stream and file names."""


UNNAMED = "unnamed"
"""Name of a card that does not tell its own."""


class LinkKind(StrEnum):
    """How two Gpus reach each other, best first (names of `nvidia-smi topo -m`)."""

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
    """What reads the Gpus of a node."""

    NVML = "nvml"
    SIMULATED = "simulated"


class Isolation(StrEnum):
    """How far jobs of a node are kept apart."""

    NONE = "none"
    """No separate Unix user."""
    WATCHED = "watched"
    """Each student's own Unix user."""
    ENFORCED = "enforced"
    """Own user and a list of devices."""


@dataclass(frozen=True, slots=True)
class Link:
    """Connection between two Gpus of one node; `a` and `b` are UUIDs."""

    a: str
    b: str
    kind: LinkKind


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One allottable card or MIG instance. `None`: the card cannot say."""

    uuid: str
    """NVML UUID: the identity. Never the index, which moves at reboots."""
    index: int
    """NVML index at the last look, for people."""
    name: str
    gpu_class: str
    """Pool key: the name without vendor words, see `gpu_class_of`."""
    memory_total_bytes: int
    """0: the card cannot say."""
    power_limit_watts: float | None = None
    slowdown_celsius: float | None = None
    """Temperature at which this model slows itself down."""
    shutdown_celsius: float | None = None
    """Temperature at which it switches itself off."""
    power_limit_min_watts: float | None = None
    """Limits that an operator may set it to."""
    power_limit_max_watts: float | None = None
    sm_clock_max_mhz: int | None = None
    memory_clock_max_mhz: int | None = None
    pcie_gen_max: int | None = None
    """What card and slot can do together."""
    pcie_width_max: int | None = None
    pci_bus_id: str = ""
    """For people with the screwdriver."""
    serial: str = ""
    compute_capability: str = ""
    """CUDA compute capability such as "8.0"; "" where unknown."""
    mig_parent: str = ""
    """UUID of the card that this MIG instance is part of; "" for a whole card."""
    mig_instance: int | None = None
    """Number of the GPU instance that this is, within its card."""
    mig: bool = False
    """Whether the card is split; then it cannot be booked as a whole."""
    lost: bool = False
    """The driver does not find it (any more)."""

    @classmethod
    def from_fields(cls, fields: Fields) -> GpuInfo:
        """Read one Gpu of a roster. Raises MessageRefused."""
        return cls(
            uuid=fields.text("uuid", most=UUID_LENGTH),
            index=fields.whole("index", most=1023),
            name=fields.text("name", most=NAME_LENGTH),
            gpu_class=fields.text("gpu_class", most=NAME_LENGTH),
            memory_total_bytes=fields.whole(
                "memory_total_bytes", most=MOST_MEMORY_BYTES
            ),
            power_limit_watts=fields.number_or_none(
                "power_limit_watts", most=MOST_WATTS
            ),
            slowdown_celsius=fields.number_or_none(
                "slowdown_celsius", most=MOST_CELSIUS
            ),
            shutdown_celsius=fields.number_or_none(
                "shutdown_celsius", most=MOST_CELSIUS
            ),
            power_limit_min_watts=fields.number_or_none(
                "power_limit_min_watts", most=MOST_WATTS
            ),
            power_limit_max_watts=fields.number_or_none(
                "power_limit_max_watts", most=MOST_WATTS
            ),
            sm_clock_max_mhz=fields.whole_or_none("sm_clock_max_mhz", most=MOST_MHZ),
            memory_clock_max_mhz=fields.whole_or_none(
                "memory_clock_max_mhz", most=MOST_MHZ
            ),
            pcie_gen_max=fields.whole_or_none("pcie_gen_max", most=10),
            pcie_width_max=fields.whole_or_none("pcie_width_max", most=64),
            pci_bus_id=fields.text_or_none("pci_bus_id", most=32) or "",
            serial=fields.text_or_none("serial", most=40) or "",
            compute_capability=fields.text_or_none("compute_capability", most=8) or "",
            mig_parent=fields.text_or_none("mig_parent", most=UUID_LENGTH) or "",
            mig_instance=fields.whole_or_none("mig_instance", most=1023),
            mig=fields.flag("mig"),
            lost=fields.flag("lost"),
        )


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node's roster: what it has and what reads it."""

    node: str
    """Whose roster it is. Not part of the message: the stream's name says it."""
    backend: Backend
    gpus: tuple[GpuInfo, ...]
    links: tuple[Link, ...] = ()
    links_known: bool = True
    """False while the driver is still asked how the Gpus are joined."""
    driver_version: str = ""
    cuda_version: str = ""
    boot_id: str = ""
    """Changes with every start of the machine: "missing after reboot"."""
    isolation: Isolation = Isolation.NONE
    extras: tuple[str, ...] = ()
    """Optional packages that the worker's environment has, of `extras.KNOWN`."""

    @property
    def fast_links(self) -> tuple[tuple[str, str], ...]:
        """Pairs of UUIDs joined by NVLink."""
        return tuple((x.a, x.b) for x in self.links if x.kind is LinkKind.NVLINK)

    def to_message(self, *, at: float) -> bytes:
        """The roster as compact JSON; `at` is the node's clock, Unix seconds.

        NVLink pairs are `fast_links`, all others `links` with their distance. A
        node so large that both are too much for a reader tells the former only.
        """
        values = {
            "v": MESSAGE_VERSION,
            "kind": "roster",
            "at": at,
            "backend": self.backend,
            "driver_version": self.driver_version,
            "cuda_version": self.cuda_version,
            "boot_id": self.boot_id,
            "isolation": self.isolation,
            "extras": self.extras,
            "gpus": [asdict(gpu) for gpu in self.gpus],
            "fast_links": self.fast_links,
        }
        slow = [x for x in self.links if x.kind is not LinkKind.NVLINK]
        links = [[x.a, x.b, x.kind] for x in slow]
        if not self.links_known:
            return dump_object({**values, "links_unknown": True})
        message = dump_object({**values, "links": links})
        if len(message) <= MESSAGE_MOST_BYTES:
            return message
        return dump_object(values)

    @classmethod
    def from_message(cls, data: bytes | str, *, node: str = "") -> NodeInfo:
        """Read a roster. Raises MessageRefused with the field that is wrong."""
        return cls.from_fields(load_message(data, kind="roster"), node=node)

    @classmethod
    def from_fields(cls, fields: Fields, *, node: str = "") -> NodeInfo:
        """Read a roster from its JSON object. Raises MessageRefused."""
        fields.number("at", most=LATEST_AT)
        gpus = tuple(
            GpuInfo.from_fields(x) for x in fields.objects("gpus", most=MOST_GPUS)
        )
        uuids = {gpu.uuid for gpu in gpus}
        if len(uuids) != len(gpus):
            fields.refuse("gpus", "a UUID appears twice")
        if any(gpu.mig_parent and gpu.mig_parent not in uuids for gpu in gpus):
            fields.refuse("gpus", "an instance of a card that is not in the roster")
        return cls(
            node=node,
            backend=fields.one_of("backend", Backend),
            gpus=gpus,
            links=read_links(fields, uuids),
            links_known=not fields.flag("links_unknown"),
            driver_version=fields.text_or_none("driver_version", most=40) or "",
            cuda_version=fields.text_or_none("cuda_version", most=20) or "",
            boot_id=fields.text_or_none("boot_id", most=40) or "",
            isolation=fields.one_of("isolation", Isolation, Isolation.NONE),
            extras=fields.words("extras", most=MOST_EXTRAS, longest=40),
        )


def read_links(fields: Fields, uuids: set[str]) -> tuple[Link, ...]:
    """A roster's `fast_links` and `links`, one Link a pair. Raises MessageRefused."""
    found = {frozenset((x.a, x.b)): x for x in read_fast_links(fields, uuids)}
    for entry in fields.items("links", most=MOST_LINKS):
        if not isinstance(entry, list) or len(entry) != 3:
            fields.refuse("links", "not a list of pairs with a distance")
        a, b = _pair(fields, "links", entry[:2], uuids)
        try:
            kind = LinkKind(entry[2])
        except ValueError:
            fields.refuse("links", "not a distance this portal knows")
        found.setdefault(frozenset((a, b)), Link(a=a, b=b, kind=kind))
    return tuple(found.values())


def read_fast_links(fields: Fields, uuids: set[str]) -> tuple[Link, ...]:
    """The pairs of a roster's `fast_links`. Raises MessageRefused."""
    links = []
    for pair in fields.items("fast_links", most=MOST_LINKS):
        if not isinstance(pair, list) or len(pair) != 2:
            fields.refuse("fast_links", "not a list of pairs")
        a, b = _pair(fields, "fast_links", pair, uuids)
        links.append(Link(a=a, b=b, kind=LinkKind.NVLINK))
    return tuple(links)


def _pair(fields: Fields, key: str, pair: list[Any], uuids: set[str]) -> list[str]:
    a, b = pair
    if a == b or not all(isinstance(x, str) and x in uuids for x in pair):
        fields.refuse(key, "not between two Gpus of this roster")
    return [a, b]


_VENDOR_WORDS = re.compile(r"^(NVIDIA|Tesla|Quadro|GeForce)\s+")


def gpu_class_of(name: str, memory_total_bytes: int) -> str:
    """Pool key of a card: its name without vendor words, with its memory.

    Cards of one name come with different memories (A100 40 and 80 GB), and
    boards of one chip under different names; both matter to what fits, so both
    are in the key. Memory is rounded to whole GiB as NVML reports it.

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
