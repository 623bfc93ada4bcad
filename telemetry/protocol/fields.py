"""Strict reading of JSON that an untrusted machine wrote.

`Fields` wraps one JSON object and hands out its values one by one, each
checked for type and range; the first value that does not fit raises
MessageRefused with the path of the field. A number that is not there and a
`null` are the same thing: the card cannot say. Unknown keys are ignored, so
that a newer node can talk to an older portal.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NoReturn, TypeVar

from telemetry.protocol.errors import MessageRefused

MESSAGE_MOST_BYTES = 256 * 1024
"""Largest message a node may send."""

MESSAGE_VERSION = 1
"""Version of the messages of the raw stream; others are refused."""
LATEST_AT = 32_503_680_000.0
"""The year 3000: a clock beyond it is broken."""

_Word = TypeVar("_Word", bound=str)


def load_object(data: bytes | str, *, most_bytes: int = MESSAGE_MOST_BYTES) -> Fields:
    """The JSON object in a message. Refuses size, syntax, depth, NaN, Infinity."""
    size_bytes = len(data) if isinstance(data, bytes) else len(data.encode())
    if size_bytes > most_bytes:
        raise MessageRefused(field="", why=f"{size_bytes} bytes, at most {most_bytes}")
    try:
        value = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise MessageRefused(field="", why=f"not JSON: {error}") from error
    return Fields(value)


def load_message(data: bytes | str, *, kind: str = "") -> Fields:
    """The JSON object of a message of this version, of one kind or of any."""
    fields = load_object(data)
    if fields.whole("v", most=1_000_000) != MESSAGE_VERSION:
        fields.refuse("v", f"this code reads version {MESSAGE_VERSION}")
    if kind and fields.text("kind", most=20) != kind:
        fields.refuse("kind", f"not a {kind}")
    return fields


def dump_object(value: dict[str, Any]) -> bytes:
    """Compact JSON, UTF-8; raises ValueError for NaN and Infinity."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


class Fields:
    """One JSON object, read strictly; `path` is where it sits in the message."""

    __slots__ = ("_path", "_values")

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise MessageRefused(field=path, why="not an object")
        self._values: dict[str, Any] = value
        self._path = path

    def refuse(self, key: str, why: str) -> NoReturn:
        """Raise MessageRefused for one of the keys."""
        raise MessageRefused(field=f"{self._path}.{key}".lstrip("."), why=why)

    def has(self, key: str) -> bool:
        """Whether the key is there with a value other than null."""
        return self._values.get(key) is not None

    def text(self, key: str, *, most: int, least: int = 1) -> str:
        """Text of `least` to `most` characters, without control characters."""
        value = self._values.get(key)
        if not isinstance(value, str):
            self.refuse(key, "not text")
        if not least <= len(value) <= most:
            self.refuse(key, f"{len(value)} characters, not {least} to {most}")
        if not value.isprintable():
            self.refuse(key, "has control characters")
        return value

    def text_or_none(self, key: str, *, most: int) -> str | None:
        """Text, or None where there is none."""
        if self._values.get(key) is None:
            return None
        return self.text(key, most=most, least=0)

    def one_of(
        self, key: str, words: type[_Word], default: _Word | None = None
    ) -> _Word:
        """A member of a StrEnum; `default`, if any, where the key is missing."""
        value = self._values.get(key, default)
        try:
            return words(value)
        except ValueError:
            self.refuse(key, "not a word of this field")

    def flag(self, key: str) -> bool:
        """True or false; missing is false."""
        value = self._values.get(key, False)
        if not isinstance(value, bool):
            self.refuse(key, "not true or false")
        return value

    def flag_or_none(self, key: str) -> bool | None:
        """True, false, or None where the card cannot say."""
        return None if self._values.get(key) is None else self.flag(key)

    def whole(self, key: str, *, most: int, least: int = 0) -> int:
        """A whole number between `least` and `most`."""
        value = self._values.get(key)
        # bool is an int in Python, not in JSON.
        if not isinstance(value, int) or isinstance(value, bool):
            self.refuse(key, "not a whole number")
        if not least <= value <= most:
            self.refuse(key, f"{_short(value)} is not between {least} and {most}")
        return value

    def whole_or_none(self, key: str, *, most: int, least: int = 0) -> int | None:
        """A whole number, or None where the card cannot say."""
        if self._values.get(key) is None:
            return None
        return self.whole(key, most=most, least=least)

    def number(self, key: str, *, most: float, least: float = 0.0) -> float:
        """A finite number between `least` and `most`."""
        value = self._values.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            self.refuse(key, "not a number")
        if not least <= value <= most:  # false for NaN too
            self.refuse(key, f"{_short(value)} is not between {least} and {most}")
        return float(value)

    def number_or_none(
        self, key: str, *, most: float, least: float = 0.0
    ) -> float | None:
        """A finite number, or None where the card cannot say."""
        if self._values.get(key) is None:
            return None
        return self.number(key, most=most, least=least)

    def items(self, key: str, *, most: int) -> list[Any]:
        """A list of at most `most` values; missing is empty."""
        value = self._values.get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.refuse(key, "not a list")
        if len(value) > most:
            self.refuse(key, f"{len(value)} entries, at most {most}")
        return value

    def objects(self, key: str, *, most: int) -> Iterator[Fields]:
        """A list of at most `most` objects; missing is empty."""
        for number, value in enumerate(self.items(key, most=most)):
            yield Fields(value, f"{self._path}.{key}[{number}]".lstrip("."))

    def words(self, key: str, *, most: int, longest: int) -> tuple[str, ...]:
        """A list of short texts; missing is empty."""
        values = self.items(key, most=most)
        if any(not isinstance(value, str) or len(value) > longest for value in values):
            self.refuse(key, f"not a list of texts of at most {longest} characters")
        if any(not value.isprintable() for value in values):
            self.refuse(key, "has control characters")
        return tuple(values)


def _short(value: float) -> str:
    """A number for an error text: a hostile one may have 4,000 digits."""
    if isinstance(value, int) and abs(value) > 10**20:
        return "a number beyond all range"
    return str(value)
