"""The rules of the device gate in plain Python, to compare the BPF program with."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

LOWEST_UID = 1000


@dataclass
class GateModel:
    """The users who may open each device, and the number of refusals."""

    majors: dict[int, frozenset[int]]
    """Minors of control devices by major number."""
    render_nodes: frozenset[tuple[int, int]]
    """Devices that are checked individually."""
    refuse: bool
    ends: dict[tuple[int, int, int], int] = field(default_factory=dict)
    """Nanoseconds of the boot clock by (uid, major, minor)."""
    refused: Counter[int] = field(default_factory=Counter)

    def may(
        self,
        uid: int,
        device: tuple[int, int],
        *,
        now_ns: int,
        kind: str = "character",
        access: str = "rw",
    ) -> bool:
        """Return whether the kernel lets a process open or make a device."""
        major, minor = device
        if kind != "character" or not set(access) & {"r", "w"}:
            return True
        known = major in self.majors and minor not in self.majors[major]
        if not known and device not in self.render_nodes:
            return True
        if uid < LOWEST_UID:
            return True
        if now_ns < self.ends.get((uid, major, minor), 0):
            return True
        self.refused[uid] += 1
        return not self.refuse
