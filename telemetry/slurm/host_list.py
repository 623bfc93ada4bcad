"""Slurm's lists of hosts as text: ``gpu[1-3,07],login``."""

import re
from itertools import product

MOST_HOSTS = 10_000
MOST_TEXT = 100_000

_COMMA = re.compile(r",(?![^\[\]]*\])")
_PART = re.compile(r"\[([^\[\]]*)\]")


class HostListInvalid(ValueError):
    """A text is no list of hosts, or names too many."""


def read_hosts(text: str) -> tuple[str, ...]:
    """Return the hosts of a list, in its order.

    Raises:
        HostListInvalid: unbalanced brackets, a range that is none, or more than
            `MOST_HOSTS`.

    >>> read_hosts("gpu[1-2,07],login")
    ('gpu1', 'gpu2', 'gpu07', 'login')
    """
    text = text.strip()
    if text in ("", "(null)", "None", "None assigned"):
        return ()
    if len(text) > MOST_TEXT:
        raise HostListInvalid(f"a list of hosts has {len(text)} characters")
    found: list[str] = []
    for part in _COMMA.split(text):
        found.extend(_expand(part, MOST_HOSTS - len(found)))
    return tuple(found)


def _expand(part: str, most: int) -> list[str]:
    pieces = _PART.split(part)
    if any(mark in piece for piece in pieces[::2] for mark in "[]"):
        raise HostListInvalid(f"not a list of hosts: {part[:80]!r}")
    choices: list[list[str]] = []
    number = 1
    for at, piece in enumerate(pieces):
        found = _range(piece, most) if at % 2 else [piece]
        choices.append(found)
        number *= len(found)
        if number > most:
            raise HostListInvalid(f"more than {MOST_HOSTS} hosts")
    return ["".join(one) for one in product(*choices)]


def _range(text: str, most: int) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not dash:
            found.append(first)
            continue
        if not (first.isdecimal() and last.isdecimal()) or len(first + last) > 20:
            raise HostListInvalid(f"not a range of hosts: {part[:40]!r}")
        low, high = int(first), int(last)
        if not 0 <= high - low <= most:
            raise HostListInvalid(f"not a range of hosts: {part[:40]!r}")
        found.extend(str(n).zfill(len(first)) for n in range(low, high + 1))
    return found
