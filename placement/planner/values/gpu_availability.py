"""A Gpu as a Plan may use it: its total, used and free memory.

`free_bytes` is the memory that a Plan may take: the total minus the used bytes, or 0
when the Gpu is booked by others, lost or in maintenance. Placement counts nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from placement.planner.values.errors import OffersInvalid
from placement.planner.values.json_value import JsonValue
from telemetry.protocol.gpu_cards import GpuCard, card_of

DISTANCES = ("nvlink", "pix", "pxb", "phb", "node", "sys")
"""The connection of two Gpus of a node, best first (`nvidia-smi topo -m`)."""
UNKNOWN_PEAK_FLOPS = 60e12
"""Assumed for a card that is not in the table of cards: between a T4 and a 3090."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOffer(JsonValue):
    """One Gpu offered to the planner."""

    refusal: ClassVar = OffersInvalid

    uuid: str
    node: str
    index: int
    name: str
    gpu_class: str
    memory_total_bytes: int
    used_bytes: int
    free_bytes: int
    """Bytes that a Plan may use; 0 if it is booked by others or lost."""
    util_pct: float | None = None
    """None: the card cannot report it."""
    compute_processes: int = 0
    """Number of other processes that compute on it."""
    bookable: bool = True
    reason: str = ""
    """Why it is not bookable."""
    peak_flops: float = UNKNOWN_PEAK_FLOPS
    """Dense 16-bit operations per second."""
    link_group: str = ""
    """Gpus with the same non-empty group are joined by fast links (NVLink)."""
    links: tuple[tuple[str, str], ...] = ()
    """(UUID of another Gpu of the node, distance): see topology.LADDER."""
    health: tuple[str, ...] = ()
    """Its fault in words, if it may be used in spite of it."""
    speed_ratio: float = 1.0
    """Part of its clock that heat, a power brake or a fault leave."""
    measured_share_ratio: float | None = None
    """Measured part of its arithmetic that a Job of the portal got; None: guessed."""
    weight: int = 1
    """Quota cost of one second, in weighted GPU-seconds."""
    network_bytes_per_second: float = 0.0
    """Bandwidth of its node to other nodes; 0: unknown, so no Plan leaves the node."""
    host_free_bytes: int | None = None
    """Free memory of its node, which offloading uses; None: unknown."""
    disk_free_bytes: int | None = None
    """Free bytes of its node's drive, which offloading uses; None: unknown."""

    @property
    def label(self) -> str:
        """Return its name for people: node:index."""
        return f"{self.node}:{self.index}"

    @property
    def card(self) -> GpuCard | None:
        """Return its row in the table of cards; None if it is not there."""
        return card_of(self.name)

    @property
    def speed_is_unknown(self) -> bool:
        """Return whether neither the table of cards nor a person gives its speed."""
        return self.card is None and self.peak_flops == UNKNOWN_PEAK_FLOPS

    @property
    def usable(self) -> bool:
        """Return whether a Plan may use it."""
        return self.bookable and self.free_bytes > 0

    @property
    def share_ratio(self) -> float:
        """Return the remaining part of its arithmetic.

        It is the measured one, or with k other computing processes about 1 / (k + 1),
        but never less than utilization leaves idle (utilization means "a kernel was
        resident", so 1 - util is a lower bound).
        """
        if self.measured_share_ratio is not None:
            return self.measured_share_ratio * self.speed_ratio
        if not self.compute_processes:
            return self.speed_ratio
        idle = 1 - (self.util_pct if self.util_pct is not None else 100.0) / 100
        return max(idle, 1 / (self.compute_processes + 1)) * self.speed_ratio

    @property
    def busy_pct(self) -> float:
        """Return utilization for ordering. A card that cannot report it counts as half
        busy.
        """
        return 50.0 if self.util_pct is None else self.util_pct

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read the result of `to_json` and check it. Raises OffersInvalid."""
        offer = super(GpuOffer, cls).from_json(data)
        check_offers([offer])
        return offer


def peak_flops_of(name: str) -> float:
    """Return the dense 16-bit peak of a card, by its name.

    >>> peak_flops_of("NVIDIA A100-SXM4-80GB")
    312000000000000.0
    """
    card = card_of(name)
    return card.half_flops if card else UNKNOWN_PEAK_FLOPS


def check_offers(offers: Sequence[GpuOffer]) -> None:
    """Raise OffersInvalid for bytes below zero, more free bytes than exist, and
    duplicates.
    """
    problems = {}
    seen = set()
    for offer in offers:
        numbers = (
            offer.memory_total_bytes,
            offer.used_bytes,
            offer.free_bytes,
            offer.host_free_bytes or 0,
            offer.disk_free_bytes or 0,
        )
        if any(type(number) is not int or number < 0 for number in numbers):
            problems[offer.uuid] = "bytes must be whole numbers from zero up"
        elif offer.free_bytes > offer.memory_total_bytes - offer.used_bytes:
            problems[offer.uuid] = (
                f"{offer.label} offers {offer.free_bytes:,} bytes but has only "
                f"{offer.memory_total_bytes - offer.used_bytes:,} unused"
            )
        if offer.uuid in seen:
            problems[offer.uuid] = f"{offer.label} is offered twice"
        seen.add(offer.uuid)
        if offer.peak_flops <= 0 or not 0 < offer.speed_ratio <= 1:
            problems[offer.uuid] = f"{offer.label} has no speed"
        if offer.network_bytes_per_second < 0 or offer.weight < 0:
            problems[offer.uuid] = f"{offer.label} costs or sends less than nothing"
        unknown = sorted({word for _, word in offer.links} - set(DISTANCES))
        if unknown:
            problems[offer.uuid] = f"{unknown[0][:20]!r} is no distance between Gpus"
    if problems:
        raise OffersInvalid(problems)
