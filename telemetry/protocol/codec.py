"""The codec: typed values to JSON, and untrusted JSON back to values.

A kind is a frozen ``msgspec.Struct`` or dataclass. Its annotations have the type of
each field, whether it may be missing, and its bounds (``Annotated[int, Meta(ge=0,
le=100)]``). Nothing is coerced: "1" is not a number and 1.0 is not a whole number. NaN
and infinity do not exist. A field that the kind does not have is ignored, so that a
newer node can talk to an older portal, unless the kind forbids it.

``Malformed`` is the only error. It names the field and the fault in one short sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import lru_cache
from pathlib import PurePath
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, inspect

MOST_WHY = 120
"""Characters of a reason, because it may quote the text of a hostile sender."""
Line = Annotated[str, Meta(extra={"printable": True})]
"""Text without control characters, as ``str.isprintable`` judges."""

_Kind = TypeVar("_Kind")
_Check = Callable[[Any], None]


class Malformed(ValueError):
    """A value that its kind does not allow.

    A ``__post_init__`` raises it too, for fields that contradict each other.
    """

    def __init__(self, field: str, why: str) -> None:
        self.field = field
        """Path of the field, such as ``gpus[3].util_pct``. Empty: the whole value."""
        self.why = why
        super().__init__(f"{field}: {why}" if field else why)

    def inside(self, outer: str) -> Malformed:
        """Return the same error for a value that is the field ``outer`` of another."""
        return Malformed(_joined(outer, self.field), self.why)


def encode(value: object) -> bytes:
    """Return a value as compact JSON in UTF-8. NaN and infinity become null."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:  # half of a surrogate pair
        text = json.dumps(to_plain(value), separators=(",", ":"), ensure_ascii=False)
        return text.encode("utf-8", "replace")


def to_plain(value: object) -> Any:
    """Return a value as the dictionaries, lists, numbers and texts of JSON."""
    return msgspec.to_builtins(value, enc_hook=_plain_text)


def decode(kind: type[_Kind], data: bytes | str, *, most_bytes: int = 2**24) -> _Kind:
    """Read a value from JSON.

    Args:
        kind: the type of the value. May be a union of Structs with tags.
        most_bytes: size of the largest text that is accepted.

    Raises:
        Malformed: it is too large, not JSON, or not of this kind.
    """
    try:
        size_bytes = len(data) if isinstance(data, bytes) else len(data.encode())
        if size_bytes > most_bytes:
            raise Malformed("", f"{size_bytes} bytes, at most {most_bytes}")
        value: _Kind = _decoder(kind).decode(data)  # type: ignore[arg-type]
    except msgspec.ValidationError as error:
        raise _malformed(error) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise Malformed("", f"not JSON: {_shown(str(error))}") from None
    _check_texts(kind, value)
    return value


def read(kind: type[_Kind], values: object) -> _Kind:
    """Read a value from the result of ``to_plain`` or ``json.loads``.

    Raises:
        Malformed: it is not of this kind.
    """
    try:
        value = msgspec.convert(values, kind, dec_hook=_path_of)
    except msgspec.ValidationError as error:
        raise _malformed(error) from None
    except RecursionError as error:
        raise Malformed("", f"{error}"[:MOST_WHY]) from None
    _check_texts(kind, value)
    return value


def read_exact(kind: type[_Kind], values: object) -> _Kind:
    """Read a value that must have all fields, including those with a default.

    Raises:
        Malformed: it is not of this kind, lacks a field, or has an unknown one.
    """
    value = read(kind, values)
    _check_names(to_plain(value), values, "")
    return value


def _check_names(known: Any, given: Any, path: str) -> None:
    if isinstance(known, dict):
        for name in known.keys() ^ given.keys():
            missing = name in known
            shown = name if name.isprintable() else "?"
            why = "is missing" if missing else "is not a known field"
            raise Malformed(_joined(path, shown[:40]), why)
        for name in known:
            _check_names(known[name], given[name], _joined(path, name))
    elif isinstance(known, list | tuple):
        for number, pair in enumerate(zip(known, given, strict=True)):
            _check_names(*pair, f"{path}[{number}]")


def _plain_text(value: object) -> str:
    """Convert a path, or a ``str`` of a subclass, to a type that msgspec knows."""
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"{type(value).__name__} has no JSON")


def _path_of(kind: type, value: object) -> PurePath:
    if issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    raise Malformed("", "not a path")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain_text)


@lru_cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, dec_hook=_path_of)


# --- errors ---------------------------------------------------------------------

_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
_BOUNDS = {"<=": "at most ", ">=": "at least ", "<": "below ", ">": "above "}
_UNITS = {"str": "characters", "array": "entries", "object": "entries"}
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]*)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<field>[^`]*)")
_TYPE = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<got>[^`]*)`")
_RANGE = re.compile(r"Expected `(?:int|float)` (?P<bound>[<>]=?) (?P<limit>\S+)")
_LENGTH = re.compile(
    r"Expected `(?P<kind>\w+)` of (?:at (?:least|most) )?length "
    r"(?P<bound>(?:[<>]=? )?)(?P<limit>\d+)"
)


def _malformed(error: msgspec.ValidationError) -> Malformed:
    """Return msgspec's error as a path and a short sentence."""
    text, _, place = str(error).rpartition(" - at `")
    if not text or not (place.startswith("$") or place.startswith("key")):
        text, place = str(error), "$"
    path = place.rpartition("$")[2].rstrip("`").lstrip(".")
    if isinstance(error.__cause__, Malformed):  # raised by a __post_init__
        return error.__cause__.inside(path)
    if found := _MISSING.match(text):
        return Malformed(_joined(path, found["field"]), "is missing")
    if found := _UNKNOWN.match(text):
        shown = found["field"] if found["field"].isprintable() else "?"
        return Malformed(_joined(path, shown[:40]), "is not a known field")
    return Malformed(path, _plain_reason(text))


def _plain_reason(text: str) -> str:
    if found := _TYPE.match(text):
        wanted = (_WORDS.get(one) for one in found["wanted"].split(" | "))
        return f"not {' or '.join(filter(None, wanted))}"
    if found := _RANGE.match(text):
        return f"must be {_BOUNDS[found['bound']]}{found['limit']}"
    if found := _LENGTH.match(text):
        bound = _BOUNDS.get(found["bound"].strip(), "")
        return f"must have {bound}{found['limit']} {_UNITS[found['kind']]}"
    if "matching regex" in text:
        return "not in the form of this field"
    if text.startswith("Invalid "):
        return "not a word of this field"
    return _shown(text)


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:MOST_WHY])


def _joined(outer: str, inner: str) -> str:
    between = "." if outer and inner and not inner.startswith("[") else ""
    return f"{outer}{between}{inner}"


# --- control characters -----------------------------------------------------------


def _check_texts(kind: Any, value: Any) -> None:
    check = _text_check(kind)
    if check is not None:
        check(value)


@lru_cache
def _text_check(kind: Any) -> _Check | None:
    return _check_of(inspect.type_info(kind))


def _check_of(info: inspect.Type, printable: bool = False) -> _Check | None:
    """Return the check of the ``Line``s in a value of a type; None if it has none."""
    if isinstance(info, inspect.Metadata):
        return _check_of(info.type, bool((info.extra or {}).get("printable")))
    if isinstance(info, inspect.StrType):
        return _check_line if printable else None
    if isinstance(info, inspect.StructType | inspect.DataclassType):
        if isinstance(info, inspect.DataclassType) and "__slots__" not in vars(
            info.cls
        ):
            # Without slots msgspec would leave out defaults when it reads and writes.
            raise TypeError(f"{info.cls.__name__} needs slots=True")
        checks = [(one.name, _check_of(one.type)) for one in info.fields]
        return _check_of_fields([(name, c) for name, c in checks if c is not None])
    if isinstance(info, inspect.VarTupleType | inspect.ListType):
        return _check_of_items(_check_of(info.item_type))
    if isinstance(info, inspect.UnionType):
        return _check_of_union(info)
    return None


def _check_line(text: str) -> None:
    if not text.isprintable():
        raise Malformed("", "has control characters")


def _check_of_fields(checks: list[tuple[str, _Check]]) -> _Check | None:
    def check(value: Any) -> None:
        for name, check_one in checks:
            if one := getattr(value, name):
                try:
                    check_one(one)
                except Malformed as error:
                    raise error.inside(name) from None

    return check if checks else None


def _check_of_items(check_item: _Check | None) -> _Check | None:
    if check_item is None:
        return None

    def check(items: Any) -> None:
        for number, item in enumerate(items):
            try:
                check_item(item)
            except Malformed as error:
                raise error.inside(f"[{number}]") from None

    return check


def _check_of_union(info: inspect.UnionType) -> _Check | None:
    """Unions are of Structs, distinguished by their class, or of one type and None."""
    by_class = {
        one.cls: _check_of(one)
        for one in info.types
        if isinstance(one, inspect.StructType | inspect.DataclassType)
    }
    if len(by_class) < 2:
        checks = (_check_of(one) for one in info.types)
        return next((one for one in checks if one is not None), None)

    def check(value: Any) -> None:
        check_one = by_class.get(type(value))
        if check_one is not None:
            check_one(value)

    return check
