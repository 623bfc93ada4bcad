"""Text from a student's program: clean it for display, and find numbers in it.

Both take linear time for every text: no pattern backtracks over more than the bounded
piece that it matches.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

LONGEST_LINE = 64 * 1024
MOST_NUMBERS_A_LINE = 16
LONGEST_NUMBER_LINE = 2000
ANY_CASE = re.IGNORECASE | re.ASCII
"""Without ASCII, "inf" also matches "ınf" with a dotless i, which is no number."""

# ECMA-48. Kept: SGR (colours), tab, line feed, carriage return. Dropped: every other
# control sequence (cursor, titles, links, device queries), lone escapes, other control
# characters, and bidirectional overrides, which reorder a line.
_CONTROL = re.compile(
    r"(?P<sgr>\x1b\[[0-9;:]{0,64}m)"
    r"|\x1b\[[0-?]{0,64}[ -/]{0,8}[@-~]?"
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]{0,8}[0-~]?"
    r"|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f]"
    r"|[\u202a-\u202e\u2066-\u2069]"
)
COLOUR = re.compile(r"\x1b\[[0-9;:]{0,64}m")
_LONG = re.compile(rf"[^\n]{{{LONGEST_LINE}}}(?=[^\n])")
QUALIFIER = (
    r"(?:(train(?:ing)?|val(?:id(?:ation)?)?|dev|eval(?:uation)?|test|avg|average|mean"
    r"|lm|grad|learning)\.?[ \t](?!step|epoch|iter))?"
)
"""A word before a metric's name that belongs to it: "val loss" is not "train loss"."""
_PAIR = re.compile(
    rf"(?<![A-Za-z0-9_./:-]){QUALIFIER}([A-Za-z_][A-Za-z0-9_./]{{0,30}})[=:] ?"
    r"(-?(?:[0-9]{1,19}(?:\.[0-9]{0,19})?|\.[0-9]{1,19})(?:[eE][+-]?[0-9]{1,3})?"
    r"|[-+]?(?:nan|inf(?:inity)?)\b)"
    r"(?:/[0-9]{1,19})?(?=[\s,;|)\]]|$)",
    ANY_CASE,
)
_ERROR = re.compile(
    r"(?:[A-Za-z_]\w{0,60}\.){0,9}[A-Z]\w{0,60}(?:Error|Exception)(?::.*)?"
    r"|(?:/usr/bin/env|(?:/bin/)?(?:ba)?sh): .+"
)
"""An exception of Python, or what env and the shell say of a missing program."""
_OF_LAUNCHERS = re.compile(r".{0,99}\b(?:ChildFailedError|CalledProcessError)\b")
"""Errors with which a launcher reports that a rank failed: not the cause."""
_OURS = "gpuportal: "
MOST_ERROR = 200


def clean(text: str) -> str:
    """Return text with colours kept and every other control sequence dropped.

    Lines longer than 64 KiB are broken.

    >>> clean("\\x1b[31mred\\x1b[0m \\x1b[2J\\x1b]0;title\\x07end")
    '\\x1b[31mred\\x1b[0m end'
    """
    kept = _CONTROL.sub(lambda found: found["sgr"] or "", text)
    return _LONG.sub(lambda found: found[0] + "\n", kept)


def error_of(lines: Sequence[str]) -> str:
    """Return the exception that ended a program, from its last lines; "": none.

    A line of the portal says as well why a program could not start.

    >>> error_of(["Traceback (most recent call last):", "ValueError: too short", ""])
    'ValueError: too short'
    """
    for line in reversed(lines):
        text = "".join(filter(str.isprintable, COLOUR.sub("", clean(line)))).strip()
        if text.startswith(_OURS):
            return text.removeprefix(_OURS)[:MOST_ERROR]
        if _ERROR.fullmatch(text) and not _OF_LAUNCHERS.match(text):
            return text[:MOST_ERROR]
    return ""


def numbers_of(line: str) -> dict[str, float] | None:
    """Return the numbers of one log line, or None if it has none.

    It has either pairs (``step=10 loss=3.2``, ``loss: 3.2``) or one JSON object. A line
    counts if it names a step and something else.

    >>> numbers_of("step=10 loss=3.25 tokens_per_s=1200")
    {'step': 10.0, 'loss': 3.25, 'tokens_per_s': 1200.0}
    >>> numbers_of("step: 3/400, loss: .5")
    {'step': 3.0, 'loss': 0.5}
    >>> numbers_of('{"step": 3, "loss": 2.5, "note": "x"}')
    {'step': 3.0, 'loss': 2.5}
    """
    pairs = pairs_of(line)
    finite = {name: value for name, value in pairs.items() if math.isfinite(value)}
    return finite if "step" in finite and len(finite) > 1 else None


def pairs_of(line: str) -> dict[str, float]:
    """Return every pair of one line, also those that are NaN or infinite."""
    if len(line) > LONGEST_NUMBER_LINE:
        return {}
    stripped = line.strip()
    if stripped.startswith("{") and stripped.endswith("}"):
        return _from_json(stripped)
    if "=" not in line and ":" not in line:
        return {}
    pairs: dict[str, float] = {}
    for before, name, value in _PAIR.findall(line):
        # "train.py:42" is a place in the code.
        if len(pairs) < MOST_NUMBERS_A_LINE and not name.endswith(".py"):
            word = f"{before}_{name}" if before else name
            pairs[word.lower()] = float(value)
    return pairs


def _from_json(text: str) -> dict[str, float]:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(body, dict):
        return {}
    pairs: dict[str, float] = {}
    for name, value in body.items():
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if number and len(name) <= 31 and len(pairs) < MOST_NUMBERS_A_LINE:
            pairs[name.lower()] = float(value) if abs(value) < 1e300 else math.inf
    return pairs
