"""Numbers in the form that people read."""

import math
from collections.abc import Iterable

from telemetry.protocol.sentences import sentence


def gib(size_bytes: float) -> str:
    """Return bytes in GiB with one decimal; in MiB below a tenth of a GiB.

    >>> gib(3 * 2**30), gib(50 * 2**20)
    ('3.0 GiB', '50 MiB')
    """
    if abs(size_bytes) < 0.1 * 2**30:
        return f"{size_bytes / 2**20:.0f} MiB"
    return f"{size_bytes / 2**30:.1f} GiB"


def gib_at_least(size_bytes: float) -> str:
    """Return bytes in GiB, rounded up, so that the shown amount is enough.

    >>> gib_at_least(3.01 * 2**30), gib_at_least(2**20 + 1)
    ('3.1 GiB', '2 MiB')
    """
    if size_bytes < 0.1 * 2**30:
        return f"{math.ceil(size_bytes / 2**20)} MiB"
    return f"{math.ceil(size_bytes / 2**30 * 10) / 10:.1f} GiB"


def seconds(value: float) -> str:
    """Return a duration with a fitting unit.

    >>> seconds(0.25), seconds(90)
    ('250 ms', '90.0 s')
    """
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.1f} s"


def duration(value: float) -> str:
    """Return a long time with a fitting unit, up to days.

    >>> duration(63.6), duration(5400), duration(3 * 86400)
    ('63.6 s', '1.5 hours', '3.0 days')
    """
    if value < 3600:
        return seconds(value)
    if value < 2 * 86_400:
        return sentence("{hours} hours", hours=f"{value / 3600:,.1f}")
    return sentence("{days} days", days=f"{value / 86_400:,.1f}")


def listed(parts: Iterable[str]) -> str:
    """Return texts as one, with "and" between them.

    >>> listed(["lab-a:0", "lab-a:1"]), listed([])
    ('lab-a:0 and lab-a:1', '')
    """
    said = list(parts)
    text = said[0] if said else ""
    for part in said[1:]:
        text = sentence("{first} and {second}", first=text, second=part)
    return text


def either(parts: Iterable[str]) -> str:
    """Return texts as one, with "or" between them.

    >>> either(["4", "8"])
    '4 or 8'
    """
    said = list(parts)
    text = said[0] if said else ""
    for part in said[1:]:
        text = sentence("{first} or {second}", first=text, second=part)
    return text


def ranges_told(ranges: Iterable[tuple[int, int]]) -> str:
    """Return ranges of layers in words, without the end of each.

    >>> ranges_told([(0, 6), (12, 18)])
    '0 to 5 and 12 to 17'
    """
    return listed(sentence("{first} to {last}", first=a, last=b - 1) for a, b in ranges)


def error_words(error_pct: float) -> str:
    """Return an error in percent with its sign.

    >>> error_words(2.4), error_words(-13.0), error_words(0.2)
    ('+2 %', '−13 %', '0 %')
    """
    whole = round(error_pct)
    sign = "+" if whole > 0 else "\u2212" if whole < 0 else ""
    return f"{sign}{abs(whole):,} %"
