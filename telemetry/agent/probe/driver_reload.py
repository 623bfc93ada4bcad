"""Detect a reload of the driver, and decide when to start NVML again.

After a reload the old handles return UNINITIALIZED, or UNKNOWN for every call.
UNINITIALIZED proves a reload. If every call fails on *one* Gpu, that Gpu is broken. If
every call fails on *every* Gpu in the same sample, the driver was reloaded. The remedy
is to shut NVML down, start it again and find the Gpus by UUID. The pauses between
attempts grow, because every attempt fails while a driver is being installed, and some
hang for a while.
"""

from __future__ import annotations

from telemetry.protocol.back_off import BackOff

BACK_OFF_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)


class ReloadWatch:
    """Collects the results of each Gpu's calls and decides. Times are monotonic
    seconds."""

    def __init__(self) -> None:
        self._proven = False
        self._urgent = False
        self._answered: set[str] = set()
        self._silent: set[str] = set()
        self._mute_before = False
        self._back_off = BackOff(BACK_OFF_SECONDS)
        self._next_try_at = float("-inf")

    @property
    def stale(self) -> bool:
        """Whether the handles seem to be invalid."""
        return self._proven

    @property
    def urgent(self) -> bool:
        """Whether no Gpu can be read before a restart. False if a Gpu only came or
        went."""
        return self._urgent

    def note(self, uuid: str, *, answered: bool) -> None:
        """Note, after each Gpu of a sample, whether any of its calls succeeded."""
        if answered:
            self._answered.add(uuid)
            self._back_off.succeeded()
        else:
            self._silent.add(uuid)

    def note_proof(self, *, urgent: bool = True) -> None:
        """Note that a call returned UNINITIALIZED, or, if not `urgent`, that the node's
        Gpus changed."""
        self._proven = True
        self._urgent = self._urgent or urgent

    def judge(self, readable: set[str]) -> None:
        """Decide between two samples. `readable`: the Gpus that have a handle.

        A Gpu that hangs or is late proves nothing. In that case failures in two samples
        in a row count as proof. If no Gpu has a handle, only a restart shows whether
        one is back.
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
        """Whether to try to restart NVML now."""
        return self._proven and at >= self._next_try_at

    def note_try(self, at: float) -> None:
        """Note an attempt. The pause before the next one grows until a Gpu answers."""
        self._next_try_at = at + self._back_off.failed()

    def note_success(self) -> None:
        """Note that NVML started and listed the Gpus."""
        self._proven = self._urgent = self._mute_before = False
        self._silent.clear()
        self._answered.clear()
