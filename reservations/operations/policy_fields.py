"""A policy's fields in words: unit, value, and why a change is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from reservations.rules.figures import credits_text
from telemetry.protocol.sentences import known, sentence
from telemetry.protocol.units import exact_bytes
from telemetry.rules.policy_declaration import PolicyRule, unit_of

Changes = Mapping[str, tuple[object, object]]
"""(before, after) by field."""


@dataclass(frozen=True, slots=True)
class PolicyField:
    """One rule with its declaration and its stored value."""

    rule: PolicyRule
    value: object

    @property
    def name(self) -> str:
        """Return the name of its column."""
        return self.rule.column

    @property
    def label(self) -> str:
        """Return its label."""
        return self.rule.label

    @property
    def is_default(self) -> bool:
        """Return whether it has its default."""
        return bool(self.value == self.rule.row_default)

    @property
    def limits(self) -> str:
        """Return the minimum and maximum in words. Empty: there are none."""
        if None in self.rule.row_limits:
            return ""
        least, most = (words_of(self.name, end) for end in self.rule.row_limits)
        return sentence("{least} to {most}", least=least, most=most)

    @property
    def outside(self) -> str:
        """Return the sentence for a value outside the limits."""
        least, most = (words_of(self.name, end) for end in self.rule.row_limits)
        return sentence("Choose between {least} and {most}.", least=least, most=most)

    def accepts(self, value: float) -> bool:
        """Return whether a value is within the limits."""
        least, most = self.rule.row_limits
        return (least is None or least <= value) and (most is None or value <= most)

    @property
    def shown(self) -> str:
        """Return the value in words."""
        return words_of(self.name, self.value)

    @property
    def default_shown(self) -> str:
        """Return the default in words."""
        return words_of(self.name, self.rule.row_default)


def words_of(name: str, value: object) -> str:
    """Return a value in words: "14 days", "40 credits", "yes".

    >>> words_of("freeze_seconds", 43200), words_of("release_idle", False)
    ('12 h', 'no')
    """
    if isinstance(value, bool):
        return sentence("yes") if value else sentence("no")
    if isinstance(value, int) and name.endswith("_gpu_seconds"):
        return credits_text(value)
    if isinstance(value, int) and name.endswith("_seconds"):
        return exact_duration(value)
    if isinstance(value, int) and name.endswith("_bytes"):
        return exact_bytes(value)
    if isinstance(value, str):
        return ", ".join(value.split("\n")) if value else sentence("none")
    unit = unit_of(name)
    if unit and "ratio" not in unit:
        return sentence("{value} {unit}", value=value, unit=known(unit))
    return str(value)


_PARTS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def exact_duration(seconds: int) -> str:
    """Return a duration to the second, so that different ones have different texts.

    >>> exact_duration(5430), exact_duration(1209600)
    ('1 h 30 min 30 s', '14 d')
    """
    words, left = [], seconds
    for size, unit in _PARTS:
        count, left = divmod(left, size)
        if count:
            words.append(f"{count} {unit}")
    return " ".join(words) or "0 s"


_TYPED = re.compile(r"(\d{1,12})\s*([a-z]*)")
_SECONDS = {
    **dict.fromkeys(("", "s", "sec", "second", sentence("seconds")), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", sentence("days")), 86_400),
    **dict.fromkeys(("w", "week", "weeks"), 604_800),
}


def read_duration(text: str) -> int:
    """Read a duration as people type it. A plain number is in seconds.

    Raises:
        ValueError: not a duration.

    >>> read_duration("14 d"), read_duration("1h 30min"), read_duration("90")
    (1209600, 5400, 90)
    """
    left = text.strip().lower()
    total = 0
    while left:
        found = _TYPED.match(left)
        if found is None or found[2] not in _SECONDS:
            raise ValueError(sentence("not a length of time"))
        total += int(found[1]) * _SECONDS[found[2]]
        left = left[found.end() :].lstrip(" ,")
    if not text.strip():
        raise ValueError(sentence("not a length of time"))
    return total
