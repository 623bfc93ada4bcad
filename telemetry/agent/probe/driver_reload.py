"""Has the driver been reloaded under our feet, and when to try again?

After a reload the old handles answer UNINITIALIZED, or UNKNOWN for everything.
UNINITIALIZED is proof. Errors for everything from *one* Gpu are a broken Gpu;
from *every* Gpu in the same sample they are a reload. The way back is to shut
NVML down, start it again and find the Gpus by UUID, with growing pauses: while
a driver is being installed every attempt fails, and some hang for a while.
"""

from __future__ import annotations

BACK_OFF_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)


class ReloadWatch:
    """Collects what each Gpu answered and decides. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._proven = False
        self._urgent = False
        self._answered: set[str] = set()
        self._silent: set[str] = set()
        self._mute_before = False
        self._tries = 0
        self._next_try_at = float("-inf")

    @property
    def stale(self) -> bool:
        """Whether the handles seem to be worthless."""
        return self._proven

    @property
    def urgent(self) -> bool:
        """Whether no Gpu can be read before that: not so when one came or went."""
        return self._urgent

    def note(self, uuid: str, *, answered: bool) -> None:
        """After each Gpu of a sample: did any of its calls succeed?"""
        if answered:
            self._answered.add(uuid)
            self._tries = 0
        else:
            self._silent.add(uuid)

    def note_proof(self, *, urgent: bool = True) -> None:
        """A call answered UNINITIALIZED; not `urgent`: the node's Gpus changed."""
        self._proven = True
        self._urgent = self._urgent or urgent

    def judge(self, readable: set[str]) -> None:
        """Between two samples; `readable` are the Gpus that have a handle.

        One that hangs, or is late, says nothing; then twice in a row is proof. Where
        no Gpu is left to ask, only starting anew tells whether one is back.
        """
        mute = bool(self._silent) and not self._answered
        if not readable:
            self.note_proof(urgent=False)
        elif readable <= self._silent or (mute and self._mute_before):
            self.note_proof()
        self._mute_before = mute
        self._silent.clear()
        self._answered.clear()

    def due(self, at: float) -> bool:
        """Whether to try to start anew now."""
        return self._proven and at >= self._next_try_at

    def note_try(self, at: float) -> None:
        """A try begins; the next one waits longer, until a Gpu answers again."""
        self._next_try_at = (
            at + BACK_OFF_SECONDS[min(self._tries, len(BACK_OFF_SECONDS) - 1)]
        )
        self._tries += 1

    def note_success(self) -> None:
        """NVML started and the Gpus were listed."""
        self._proven = self._urgent = self._mute_before = False
        self._silent.clear()
        self._answered.clear()
