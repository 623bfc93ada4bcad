"""Slurm's generic resources (GRES) as text: ``gpu:a100:2(IDX:0-1)``.

Source of the formats: slurm.conf(5), scontrol(1), squeue(1), sacct(1), and what Slurm
22.05 prints.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

GPU = "gpu"
MOST_INDICES = 1024
"""A node with more GPUs than this is a mistake in the text."""
MOST_TEXT = 20_000

_ENTRY = re.compile(
    r"(?:gres[:/])?(?P<name>[^\s:/=(),]+)"
    r"(?::(?P<kind>\(null\)|(?!\d+[KMGTP]?(?:[(=]|$))[^\s:=()]+))?"
    r"(?::no_consume)?"
    r"(?:[:=](?P<count>\d+)(?P<unit>[KMGTP]?))?"
    r"(?:\((?P<note>[^()]*)\))?"
)
_COMMA = re.compile(r",(?![^()]*\))")
_UNITS = {"": 1} | {unit: 1024**power for power, unit in enumerate("KMGTP", start=1)}
_NOTHING = frozenset({"", "N/A", "(null)", "n/a", "none"})


@dataclass(frozen=True, slots=True)
class GresCount:
    """A number of resources of one name and type."""

    name: str
    """`gpu`."""
    kind: str
    """The type, such as `a100`; "" if the cluster declares none."""
    count: int
    indices: tuple[int, ...] = ()
    """Which ones; () if Slurm counts them only."""
    near_cores: bool = False
    """Whether gres.conf names the processors near them (``Cores=``)."""


def read_gres(text: str) -> tuple[GresCount, ...]:
    """Read a list of resources. Entries that are not understood are left out.

    >>> read_gres("gpu:a100:2(IDX:0,3)")
    (GresCount(name='gpu', kind='a100', count=2, indices=(0, 3), near_cores=False),)
    >>> read_gres("gpu:2(S:0-1),shard:8")[0]
    GresCount(name='gpu', kind='', count=2, indices=(), near_cores=True)
    """
    if text.strip() in _NOTHING or len(text) > MOST_TEXT:
        return ()
    return tuple(_entries(text))


def gpus_in(counts: tuple[GresCount, ...]) -> tuple[GresCount, ...]:
    """Return the entries that are GPUs."""
    return tuple(one for one in counts if one.name == GPU)


def read_tres_gpus(text: str) -> int:
    """Return how many GPUs a list of trackable resources has.

    The entry without a type is the total. Without it the entries by type are added.

    >>> read_tres_gpus("billing=2,cpu=1,gres/gpu:a100=2,gres/gpu=2,node=1")
    2
    """
    found = _tres_gpus(text)
    total = [one.count for one in found if not one.kind]
    return max(total) if total else sum(one.count for one in found)


def read_tres_kinds(text: str) -> tuple[tuple[str, int], ...]:
    """Return the types of GPUs in a list of trackable resources, and their numbers.

    >>> read_tres_kinds("cpu=1,gres/gpu:a100=2,gres/gpu=2")
    (('a100', 2),)
    """
    counts: dict[str, int] = {}
    for one in _tres_gpus(text):
        if one.kind:
            counts[one.kind] = counts.get(one.kind, 0) + one.count
    return tuple(sorted(counts.items()))


def read_tres_cpus(text: str) -> int:
    """Return how many processors a list of trackable resources has; 0: it names none.

    >>> read_tres_cpus("cpu=4,gres/gpu=2")
    4
    """
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name == "cpu" and value.isdecimal():
            return int(value[:12])
    return 0


def _tres_gpus(text: str) -> list[GresCount]:
    named = [part for part in text.split(",") if part.startswith("gres/gpu")]
    return list(gpus_in(read_gres(",".join(named))))


def read_indices(text: str) -> tuple[int, ...]:
    """Read ``0-1,3`` as (0, 1, 3). Return () if it is not such a list."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            return ()
        low, high = int(first), int(last) if dash else int(first)
        if not low <= high < MOST_INDICES:
            return ()
        found.extend(range(low, high + 1))
    return tuple(sorted(set(found)))


def _entries(text: str) -> Iterator[GresCount]:
    for part in _COMMA.split(text):
        match = _ENTRY.fullmatch(part.strip())
        if match is None:
            continue
        kind = match["kind"] or ""
        count = 1 if match["count"] is None else int(match["count"][:12])
        note = match["note"] or ""
        indices = read_indices(note[4:]) if note.startswith("IDX:") else ()
        yield GresCount(
            name=match["name"],
            kind="" if kind == "(null)" else kind,
            count=count * _UNITS[match["unit"] or ""],
            indices=indices,
            near_cores=note.startswith("S:"),
        )
