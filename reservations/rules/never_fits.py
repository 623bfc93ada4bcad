"""Whether the site has the GPUs that somebody searches for or waits for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, tzinfo

from reservations.rules.calendar import CalendarGpu, SlotWish, groups_of
from reservations.rules.closed_time import Barred, check_pools
from reservations.rules.errors import Refusal
from telemetry.protocol.sentences import sentence

GIB_BYTES = 2**30


@dataclass(eq=False)
class NeverFits(Refusal):
    """No GPU here fits the request, however long it waits."""

    code = "never-fits"
    title = sentence("No such GPUs")
    asked: int
    there: int
    """Gpus of the site that fit and that the requester may book."""
    gpu_class: str = ""
    """Empty: any class."""
    classes: tuple[str, ...] = ()
    """All classes that the requester may book."""
    min_memory_bytes: int = 0
    largest_bytes: int = 0
    """Memory of the largest Gpu of the class, or of the site."""
    of_nodes: tuple[int, ...] = ()
    """Numbers of GPUs of the nodes that fit but are given out as a whole."""

    def text(self, zone: tzinfo = UTC) -> str:
        if self.gpu_class and self.gpu_class not in self.classes:
            return sentence(
                "There is no class {name}. The classes are: {classes}.",
                name=self.gpu_class,
                classes=", ".join(self.classes),
            )
        if self.largest_bytes and self.min_memory_bytes > self.largest_bytes:
            sizes = {
                "asked": _gib(self.min_memory_bytes),
                "largest": _gib(self.largest_bytes),
            }
            if not self.gpu_class:
                return sentence(
                    "No GPU here has {asked} GiB. The largest has {largest} GiB.",
                    **sizes,
                )
            return sentence(
                "No {name} here has {asked} GiB. The largest has {largest} GiB.",
                name=self.gpu_class,
                **sizes,
            )
        if self.of_nodes:
            return sentence(
                "Of the portal's GPUs that you may book here {there} fit. {asked} were "
                "asked for. Slurm gives out whole nodes. It can give you: {numbers}.",
                there=self.there,
                asked=self.asked,
                numbers=", ".join(map(str, self.of_nodes)),
            )
        values = {"there": self.there, "asked": self.asked}
        if not self.there:
            return sentence(
                "Of the GPUs you may book here none fit; {asked} were asked for. "
                "Waiting would not help.",
                **values,
            )
        if self.there == 1:
            return sentence(
                "Of the GPUs you may book here 1 fits; {asked} were asked for. Waiting "
                "would not help.",
                **values,
            )
        return sentence(
            "Of the GPUs you may book here {there} fit; {asked} were asked for. "
            "Waiting would not help.",
            **values,
        )


def check_there(wish: SlotWish, gpus: Sequence[CalendarGpu], barred: Barred) -> None:
    """Refuse a wish for Gpus that the site does not have. Those out of service count.

    Of another engine's Gpus those count that a set of this number may have
    (``SlotWish.may_have``).

    Args:
        wish: what is searched for.
        gpus: all of the site.
        barred: the Pools that the requester may not book.

    Raises:
        PoolNotYours: all Gpus that fit are reserved for other groups.
        NeverFits: too few fit.
    """
    own = [gpu for gpu in gpus if not gpu.engine or gpu.of_node]
    good = [gpu for gpu in own if wish.suits(gpu)]
    allowed = [gpu for gpu in good if gpu.pool_pk not in barred]
    if good and not allowed:
        check_pools(good, barred)
    usable = [gpu for gpu in allowed if wish.may_have(gpu)]
    if groups_of(usable, wish.count):
        return
    whole = {gpu.of_node for gpu in allowed if gpu.engine and gpu.whole_node}
    known = [gpu for gpu in own if gpu.pool_pk not in barred]
    sizes = [
        gpu.memory_total_bytes
        for gpu in known
        if wish.gpu_class in (None, gpu.gpu_class)
    ]
    raise NeverFits(
        asked=wish.count,
        there=len([gpu for gpu in usable if not gpu.engine]),
        of_nodes=tuple(sorted(whole)),
        gpu_class=wish.gpu_class or "",
        classes=tuple(sorted({gpu.gpu_class for gpu in known})),
        min_memory_bytes=wish.min_memory_bytes,
        largest_bytes=max(sizes, default=0),
    )


def _gib(size_bytes: int) -> str:
    return f"{round(size_bytes / GIB_BYTES, 1):g}"
