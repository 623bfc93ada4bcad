"""Remove a person's names from texts, for an erasure.

A name matches only as a whole word, ignoring case: a login "max" does not match
"maximum". Names of one or two letters are not removed from free texts, because they
would match too many words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, tzinfo
from typing import Any

from reservations.rules.errors import Refusal
from telemetry.protocol.sentences import joined, sentence

SHORTEST_NAME = 3


@dataclass(eq=False)
class StillHolds(Refusal):
    """The person still holds something, so they cannot be erased."""

    code = "still-holds"
    title = sentence("Still in use")
    what: str = ""

    def text(self, zone: tzinfo = UTC) -> str:
        return sentence("This person {what}. End that first.", what=self.what)


@dataclass(eq=False)
class NotErasable(Refusal):
    """The name was not typed, or the person is an operator."""

    code = "not-erasable"
    title = sentence("Not erased")
    why: str = ""

    def text(self, zone: tzinfo = UTC) -> str:
        return joined([self.why, "."], by="")


@dataclass(frozen=True)
class PersonNames:
    """The names of a person, and the alias that replaces them."""

    alias: str
    names: tuple[str, ...]
    pattern: re.Pattern[str] | None

    @property
    def searched(self) -> tuple[str, ...]:
        """Return the words that the database searches for, before the pattern decides.

        SQLite folds the case of ASCII only, and JSON may hold other letters escaped.
        """
        found: dict[str, None] = {}
        for name in self.names:
            for form in (name, name.lower(), name.upper(), name.title()):
                found[form] = None
                found[json.dumps(form)[1:-1]] = None
        return tuple(found)

    def inside(self, text: str) -> bool:
        """Return whether a text names the person."""
        return self.pattern is not None and self.pattern.search(text) is not None

    def without(self, text: str) -> str:
        """Return a text with the alias in place of every name."""
        return self.pattern.sub(self.alias, text) if self.pattern else text

    def json_without(self, value: Any) -> Any:
        """Return JSON with the alias in place of every name, keys included."""
        if isinstance(value, str):
            return self.without(value)
        if isinstance(value, list):
            return [self.json_without(each) for each in value]
        if isinstance(value, dict):
            return {self.without(k): self.json_without(v) for k, v in value.items()}
        return value


def names_of(
    alias: str, words: Iterable[str], exact: Iterable[str] = ()
) -> PersonNames:
    """Return what to look for, the longest name first.

    Args:
        exact: names that are words too ("Mark", "Grace"): meant only as they are
            written.

    >>> names_of("erased-7", ["wgrace"], ["Grace"]).without("Grace, by the grace")
    'erased-7, by the grace'
    >>> names = names_of("erased-7", ["max", "Max Muster", "mm"])
    >>> names.without("MAX MUSTER gave maximum; Max, mm")
    'erased-7 gave maximum; erased-7, mm'
    """
    found = {word.strip() for word in words}
    strict = {word.strip() for word in exact} - found
    names = sorted(
        (word for word in found | strict if len(word) >= SHORTEST_NAME),
        key=lambda w: (-len(w), w),
    )
    if not names:
        return PersonNames(alias, (), None)
    joined = "|".join(
        f"(?-i:{re.escape(name)})" if name in strict else re.escape(name)
        for name in names
    )
    pattern = re.compile(rf"(?<!\w)(?:{joined})(?!\w)", re.IGNORECASE)
    return PersonNames(alias, tuple(names), pattern)
