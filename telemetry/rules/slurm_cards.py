"""The card that a type of GRES stands for. Pure.

With AutoDetect=nvml a type is the name of the card, or a part of it, in lower case and
with underscores (gres.conf(5)). Other types are words of the site.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from telemetry.protocol.gpu_cards import CARDS, GpuCard, card_of

GB = 10**9
_WORDS = re.compile(r"[^ _/-]+")


def card_of_type(kind: str, named: Mapping[str, str]) -> GpuCard | None:
    """Return the card of a type; None: it is not known.

    A type such as ``a100`` stands for cards with 40 and with 80 GB, so it needs a name.

    Args:
        kind: the type of the GRES; "": none.
        named: names of cards by type (`SLURM_CARDS`).

    >>> card_of_type("nvidia_a100-sxm4-80gb", {}).name
    'NVIDIA A100-SXM4-80GB'
    >>> card_of_type("h200", {}).memory_gb, card_of_type("a100", {})
    (141.0, None)
    >>> card_of_type("a100", {"a100": "NVIDIA A100-SXM4-80GB"}).memory_gb
    80.0
    """
    if name := named.get(kind):
        return card_of(name)
    words = _words(kind)
    if not words:
        return None
    found = card_of(kind.replace("_", " "))
    if found is not None and _words(found.name) == words:
        return found
    alike = [card for card in CARDS if words <= _words(card.name)]
    kinds = {(card.memory_gb, card.compute_capability) for card in alike}
    if len(kinds) != 1:
        return None
    return min(alike, key=lambda card: card.half_flops)


def memory_of_type(kind: str, named: Mapping[str, str]) -> int:
    """Return the bytes of a type's card; 0: not known.

    A GB of a data sheet is 10^9 bytes here. Drivers report up to 7 % more.
    """
    card = card_of_type(kind, named)
    return int(card.memory_gb * GB) if card else 0


def read_named_cards(text: str) -> dict[str, str]:
    """Read ``a100=NVIDIA A100-SXM4-80GB,h100=...``: the cards of types.

    Raises:
        ValueError: an entry has no "=", or a card is not in the table.
    """
    found = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        kind, _, name = (word.strip() for word in entry.partition("="))
        if not kind or card_of(name) is None:
            raise ValueError(entry)
        found[kind] = name
    return found


def _words(name: str) -> frozenset[str]:
    words = _WORDS.findall(name.lower())
    return frozenset(words) - {"nvidia", "tesla", "amd", "instinct"}
