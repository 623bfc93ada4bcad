"""The use by which a branch of the tree is above another, for advice.

Fair Tree compares siblings by level_fs = norm_shares / effective usage
(docs/design/fair-booking.md#fair-tree), so two memberships are compared where their
paths part: one is above the other exactly if its branch has used less for its shares.
Time alone changes no rank, because all usage decays equally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Branch:
    """A child of the level where two paths part."""

    title: str
    norm_shares: Fraction
    usage: int
    """Weighted usage, in the units of ``fairshare.weight_at``."""


def diverging_nodes(own: Sequence[T], other: Sequence[T]) -> tuple[T, T] | None:
    """Return the first nodes at which two paths from the root differ.

    >>> diverging_nodes(["uni", "vision", "alice"], ["uni", "vision", "bob"])
    ('alice', 'bob')
    """
    for one, two in zip(own, other, strict=False):
        if one != two:
            return one, two
    return None


def surplus_usage(own: Branch, other: Branch) -> int | None:
    """Return by how much less use own would tie with other.

    Zero or below: it is not behind. None: the other has used nothing, so only
    having used nothing would tie.

    >>> surplus_usage(Branch("a", Fraction(1, 2), 80), Branch("b", Fraction(1, 2), 50))
    30
    """
    if other.usage == 0 and other.norm_shares > 0:
        return None if own.usage else 0
    if other.norm_shares == 0:
        return 0
    return own.usage - int(other.usage * own.norm_shares / other.norm_shares)


def used_ratio(level_fs: float | None) -> float:
    """Return how many times its share a branch has used.

    >>> used_ratio(0.5), used_ratio(None)
    (2.0, 0.0)
    """
    if level_fs is None:
        return 0.0
    return 1 / level_fs if level_fs > 0 else float("inf")
