"""What Slurm's commands print, as JSON objects and fields.

Shapes differ between versions: a number is ``7`` or ``{"set": true, "infinite":
false, "number": 7}``, and a state is ``"IDLE"``, ``"idle"`` or ``["IDLE", "DRAIN"]``.
Site profiles print banners before the JSON. A command may exit with status 0 although
the controller did not answer: Slurm 22.05 then prints an empty list and an entry in
``errors``.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

MOST_BYTES = 64 * 2**20
"""Largest output of one command that is read."""
MOST_RECORDS = 200_000
MOST_STARTS = 20
"""Lines that begin with a brace before the JSON itself, such as those of a banner."""
MOST_SECONDS = 2**32 - 16
"""Slurm's largest times mean "infinite" or "not set"."""

_START = re.compile(r"^\{", re.MULTILINE)


class SlurmFailure(Exception):
    """Slurm cannot be read now. The text is one line."""


class SlurmOutputInvalid(SlurmFailure):
    """Slurm's answer cannot be read, or it reports an error."""


def read_records(output: bytes, key: str) -> list[dict[str, Any]]:
    """Return the objects under a key of the JSON that a command printed.

    Args:
        key: `jobs`, `nodes` or `reservations`.

    Raises:
        SlurmOutputInvalid: there is no such JSON, it is too large, or it reports an
            error.
    """
    found = _read_object(output, key)
    if errors := _errors(found):
        raise SlurmOutputInvalid(f"Slurm reports: {errors}")
    records = found[key]
    if not isinstance(records, list):
        raise SlurmOutputInvalid(f"{key}: a list was expected")
    if len(records) > MOST_RECORDS:
        raise SlurmOutputInvalid(f"{key}: {len(records)} entries are too many")
    return [one for one in records if isinstance(one, dict)]


def _read_object(output: bytes, key: str) -> dict[str, Any]:
    if len(output) > MOST_BYTES:
        raise SlurmOutputInvalid(f"more than {MOST_BYTES // 2**20} MiB of output")
    text = output.decode("utf-8", errors="replace")
    decoder = json.JSONDecoder()
    for number, start in enumerate(_START.finditer(text)):
        if number >= MOST_STARTS:
            break
        try:
            found, _end = decoder.raw_decode(text, start.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and key in found:
            return found
    head = " ".join(text.split())[:120]
    raise SlurmOutputInvalid(f"no JSON with {key!r} in the output: {head!r}")


def _errors(found: Mapping[str, Any]) -> str:
    told = []
    errors = found.get("errors")
    for one in errors if isinstance(errors, list) else []:
        if not isinstance(one, dict):
            continue
        words = [text_of(one, name) for name in ("description", "error")]
        told.append(": ".join(word for word in words if word) or "an error")
    return "; ".join(" ".join(one.split()) for one in told)[:300]


def text_of(record: Mapping[str, Any], *names: str) -> str:
    """Return the first of these fields that is a text; "" if there is none."""
    for name in names:
        value = record.get(name)
        if isinstance(value, str):
            return value
    return ""


def number_of(record: Mapping[str, Any], name: str) -> int | None:
    """Return a number in any of Slurm's forms; None: not set, or infinite."""
    value = record.get(name)
    if isinstance(value, dict):
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value[:20])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # NaN and infinity are no numbers of JSON, but Python reads them.
    return int(value) if abs(value) < 2**63 else None


def is_infinite(record: Mapping[str, Any], name: str) -> bool:
    """Return whether a number is infinite."""
    value = record.get(name)
    return isinstance(value, dict) and bool(value.get("infinite"))


def time_of(record: Mapping[str, Any], name: str) -> int | None:
    """Return Unix seconds; None: not set, zero or infinite."""
    value = number_of(record, name)
    return value if value is not None and 0 < value < MOST_SECONDS else None


def words_of(record: Mapping[str, Any], *names: str) -> frozenset[str]:
    """Return the words of these fields in upper case: of lists, and of texts that are
    joined by ``+`` or ``,``."""
    found: list[str] = []
    for name in names:
        value = record.get(name)
        parts = value if isinstance(value, list) else [value]
        found += [part for part in parts if isinstance(part, str)]
    split = (word for part in found for word in re.split(r"[+,]", part))
    return frozenset(word.strip().upper() for word in split if word.strip())
