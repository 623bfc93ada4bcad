"""The time in which another engine does not give out its GPUs. Pure.

A search leaves it out. A booking asks the engine itself, which has the last word.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reservations.rules.calendar import BusySpan, CalendarGpu
from reservations.rules.window import Window, instant, unix, without


@dataclass(frozen=True, slots=True)
class EngineUse:
    """What keeps one Gpu from a booking now. Times are Unix seconds."""

    gpu_pk: int
    until: int | None
    """None: nobody knows."""
    hold: str = ""
    """Name of the hold in which its job runs. Empty: none."""


@dataclass(frozen=True, slots=True)
class EngineHeld:
    """GPUs of one node that the engine holds for another purpose."""

    name: str
    node: str
    start: int
    end: int
    gpus: int | None
    """How many. None: the whole node."""


def engine_spans(
    gpus: Sequence[CalendarGpu],
    uses: Iterable[EngineUse],
    holds: Iterable[EngineHeld],
    booked: Mapping[int, Sequence[Window]],
    *,
    first: int,
    last: int,
) -> list[BusySpan]:
    """Return the spans in which these Gpus are not to be had, without booked time.

    A job on one GPU of a node that is given out as a whole is in the way of all. An
    engine that holds a number of GPUs does not say which ones. They are those in
    which jobs of the hold run, then those without other bookings in its time.

    Args:
        booked: the booked time of each Gpu.
        first, last: Unix seconds. Nothing is returned before or after.
    """
    by_node: dict[str, list[CalendarGpu]] = defaultdict(list)
    for gpu in gpus:
        if gpu.engine:
            by_node[gpu.node].append(gpu)
    if not by_node:
        return []
    by_pk = {gpu.pk: gpu for gpu in gpus if gpu.engine}
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    inside: dict[int, str] = {}
    for use in uses:
        gpu = by_pk[use.gpu_pk]
        inside[gpu.pk] = use.hold
        for card in by_node[gpu.node] if gpu.whole_node else [gpu]:
            until = last if use.until is None else use.until
            found[card.pk].append((first, until))
    taken = {
        pk: found[pk] + [(unix(one.start), unix(one.end)) for one in booked.get(pk, ())]
        for pk in by_pk
    }
    for hold in sorted(holds, key=lambda one: (one.start, one.name)):
        cards = sorted(
            by_node.get(hold.node, ()),
            key=lambda gpu: (
                inside.get(gpu.pk) != hold.name,
                any(
                    low < hold.end and hold.start < high for low, high in taken[gpu.pk]
                ),
                gpu.index,
            ),
        )
        for gpu in cards[: hold.gpus]:
            found[gpu.pk].append((hold.start, hold.end))
            taken[gpu.pk].append((hold.start, hold.end))
    spans = []
    for gpu in gpus:
        if not gpu.engine:
            continue
        gone = list(booked.get(gpu.pk, ()))
        for low, high in sorted(found[gpu.pk]):
            low, high = max(low, first), min(high, last)
            if low >= high:
                continue
            window = Window(instant(low), instant(high))
            for part in without(window, gone):
                spans.append(BusySpan(gpu.pk, unix(part.start), unix(part.end)))
            gone.append(window)
    return spans
