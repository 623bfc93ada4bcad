"""The links between the Gpus of a Plan, and their bandwidth in bytes per second.

The words are those of `nvidia-smi topo -m`. An all-reduce ring runs at the pace of its
slowest hop (NVIDIA NCCL documentation, NCCL_P2P_LEVEL), so the bandwidth of a set of
Gpus is that of its slowest pair. Gpus that NVLink joins through other Gpus count as
joined, because a ring only needs neighbours. The rates are priors for one direction of
an all-reduce: PCIe 4 x16 about 22 GB/s below one switch and half of that through the
processor. NVLink's is two thirds of the data sheet's rate of one direction
(`telemetry/protocol/gpu_cards.py`), 200 GB/s on an A100. An unknown card has the same.
Cost: the number of pairs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from placement.planner.values.gpu_availability import GpuOffer
from telemetry.protocol.sentences import sentence

NVLINK = "nvlink"
NETWORK = "network"
UNKNOWN = ""
BYTES_PER_SECOND: dict[str, float] = {
    NVLINK: 200e9,
    "pix": 22e9,
    "pxb": 20e9,
    "phb": 12e9,
    UNKNOWN: 12e9,
    "node": 10e9,
    "sys": 8e9,
}
"""Best first. A pair without a description counts as through the processor."""
NVLINK_REACHED_RATIO = 2 / 3
"""Part of one direction's rate that all-reduce reaches (NCCL's tests report 230 of
300 GB/s on A100 boards for large messages, less for small ones)."""
LADDER = tuple(BYTES_PER_SECOND)
WORDS = {
    NVLINK: "NVLink",
    "pix": sentence("one PCIe switch"),
    "pxb": sentence("several PCIe switches"),
    "phb": sentence("PCIe through the processor"),
    UNKNOWN: "PCIe",
    "node": sentence("PCIe through the processor"),
    "sys": sentence("PCIe across sockets"),
    NETWORK: sentence("the network between nodes"),
}
"""Names of links in a sentence."""


@dataclass(frozen=True, slots=True)
class SlowestLink:
    """The slowest hop of a set of Gpus."""

    word: str
    bytes_per_second: float

    @property
    def words(self) -> str:
        """Return its name for people."""
        return WORDS[self.word]


BEST = SlowestLink(NVLINK, BYTES_PER_SECOND[NVLINK])


def pair_link(a: GpuOffer, b: GpuOffer) -> SlowestLink:
    """Return the link between two Gpus."""
    if a.node != b.node:
        speed = min(a.network_bytes_per_second, b.network_bytes_per_second)
        return SlowestLink(NETWORK, speed)
    if a.link_group and a.link_group == b.link_group:
        return _nvlink(a, b)
    words = [word for uuid, word in a.links if uuid == b.uuid]
    words += [word for uuid, word in b.links if uuid == a.uuid]
    word = min(words, key=LADDER.index) if words else UNKNOWN
    if word == NVLINK:
        return _nvlink(a, b)
    return SlowestLink(word, BYTES_PER_SECOND[word])


def _nvlink(a: GpuOffer, b: GpuOffer) -> SlowestLink:
    """Return NVLink at the pace of the slower card; the prior if neither row has it."""
    cards = [one.card for one in (a, b)]
    rates = [
        card.nvlink_bytes_per_second / 2 * NVLINK_REACHED_RATIO
        for card in cards
        if card is not None and card.nvlink_generation
    ]
    return SlowestLink(NVLINK, min(rates)) if rates else BEST


def slowest_link(offers: Sequence[GpuOffer]) -> SlowestLink:
    """Return the slowest hop among some Gpus; for a single one the best link."""
    pairs: list[SlowestLink] = []
    by_node: dict[str, list[GpuOffer]] = {}
    for offer in offers:
        by_node.setdefault(offer.node, []).append(offer)
    if len(by_node) > 1:
        rate = min(offer.network_bytes_per_second for offer in offers)
        pairs.append(SlowestLink(NETWORK, rate))
    for near in by_node.values():
        pairs += (pair_link(a, b) for a, b in combinations(near, 2))
    return min(pairs, key=lambda link: link.bytes_per_second, default=BEST)


def joined_by_fast_links(offers: Sequence[GpuOffer]) -> bool:
    """Return whether NVLink joins them all. A single Gpu sends nothing and is not
    joined.
    """
    if len(offers) < 2:
        return bool(offers) and bool(offers[0].link_group)
    if len({offer.node for offer in offers}) > 1:
        return False
    return all(pair_link(a, b).word == NVLINK for a, b in combinations(offers, 2))


def neighbourhoods(offers: Sequence[GpuOffer]) -> list[tuple[GpuOffer, ...]]:
    """Return sets of Gpus that are closer to each other than to the rest; all of them
    last.

    For each rate of some pair: the Gpus that pairs of at least this rate join. The best
    connected n Gpus are inside one of these sets if distances form a tree, as those of
    PCIe and sockets do.
    """
    if not offers:
        return []
    pairs = [
        (pair_link(a, b).bytes_per_second, i, j)
        for (i, a), (j, b) in combinations(enumerate(offers), 2)
    ]
    found: dict[tuple[int, ...], None] = {}
    for rate in sorted({rate for rate, _, _ in pairs}, reverse=True):
        joined = [(i, j) for speed, i, j in pairs if speed >= rate]
        for group in _components(len(offers), joined):
            if len(group) > 1:
                found[group] = None
    found[tuple(range(len(offers)))] = None
    return [tuple(offers[i] for i in group) for group in found]


def fast_groups(offers: Sequence[GpuOffer]) -> list[tuple[GpuOffer, ...]]:
    """Return Gpus of one node that NVLink joins, two or more, in the given order."""
    joined = [
        (i, j)
        for (i, a), (j, b) in combinations(enumerate(offers), 2)
        if pair_link(a, b).word == NVLINK
    ]
    groups = _components(len(offers), joined)
    return [tuple(offers[i] for i in group) for group in groups if len(group) > 1]


def _components(count: int, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Return sets that pairs join, each in order, the first ones first."""
    leader = list(range(count))

    def find(one: int) -> int:
        while leader[one] != one:
            leader[one] = leader[leader[one]]
            one = leader[one]
        return one

    for a, b in pairs:
        low, high = sorted((find(a), find(b)))
        leader[high] = low
    groups: dict[int, list[int]] = {}
    for one in range(count):
        groups.setdefault(find(one), []).append(one)
    return [tuple(group) for group in groups.values()]
