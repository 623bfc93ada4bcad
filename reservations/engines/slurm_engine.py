"""Slurm as an engine: one advance reservation for each hold, of whole nodes or of a
number of GPUs on each node.

Slurm does not change the number of GPUs of a reservation. So it is deleted, and created
with the new number. If that is refused, it is created as it was.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from reservations.engines.engine_port import (
    EngineAnswer,
    EngineAway,
    EngineCapabilities,
    EngineDeclined,
    EngineView,
    HoldInfo,
)
from reservations.engines.rules import as_counted, meets
from reservations.rules.engine_names import reservation_of
from telemetry.slurm.gres import read_tres_cpus, read_tres_gpus, read_tres_kinds
from telemetry.slurm.slurm_commands import SlurmCommands
from telemetry.slurm.slurm_output import SlurmFailure
from telemetry.slurm.slurm_records import SlurmReservation
from telemetry.slurm.slurm_refusals import SlurmAnswer, SlurmRefusal

FLAG = "MAGNETIC"
"""Jobs of its users run in the reservation without naming it."""
_TAKEN = (SlurmAnswer.DUPLICATE, SlurmAnswer.OVERLAP, SlurmAnswer.BUSY)
_ANSWERS = {
    SlurmAnswer.OVERLAP: EngineAnswer.TAKEN,
    SlurmAnswer.BUSY: EngineAnswer.BUSY,
    SlurmAnswer.IN_USE: EngineAnswer.IN_USE,
    SlurmAnswer.NO_USER: EngineAnswer.NO_USER,
    SlurmAnswer.DENIED: EngineAnswer.DENIED,
}


@dataclass(frozen=True, slots=True)
class SlurmEngine:
    """The cluster of `SLURM_CLUSTER`."""

    commands: SlurmCommands
    site: str
    """The portal's id in the names of its holds."""

    def capabilities(self) -> EngineCapabilities:
        """Return that Slurm has to be told of reservations."""
        return EngineCapabilities(holds=True)

    def within(self, seconds: float) -> SlurmEngine:
        """Return this engine with commands that end in time."""
        deadline = time.monotonic() + seconds
        return replace(self, commands=replace(self.commands, deadline=deadline))

    def reserve(self, hold: HoldInfo, *, now: datetime) -> None:
        """Create a reservation, or change the one that has the name.

        One in which jobs of other people run is not taken over.
        """
        try:
            self._create(hold, now=now)
        except SlurmRefusal as refusal:
            # An earlier request may have been carried out although its answer was lost.
            seen = None
            if refusal.answer in _TAKEN:
                view = self.observe(now=now)
                seen = view.holds.get(hold.name)
                if seen and view.running.get(hold.name) and seen.users != hold.users:
                    seen = None
            if seen is None:
                raise self._declined(hold, refusal) from refusal
            self.change(hold, seen=seen, now=now)
        except SlurmFailure as error:
            raise EngineAway(str(error)) from error

    def change(self, hold: HoldInfo, *, seen: HoldInfo, now: datetime) -> None:
        """Change the fields that differ, all by one command, or make it again."""
        hold = as_counted(hold, seen)
        try:
            if is_made_again(hold, seen):
                self._make_again(hold, seen, now=now)
            elif fields := changed_fields(hold, seen, now=now):
                self.commands.update_reservation(hold.name, fields)
        except SlurmRefusal as refusal:
            raise self._declined(hold, refusal) from refusal
        except SlurmFailure as error:
            raise EngineAway(str(error)) from error

    def _create(self, hold: HoldInfo, *, now: datetime) -> None:
        """Create a reservation. If the processors near the GPUs are not free, take one
        for each GPU.

        Raises:
            SlurmFailure.
        """
        try:
            self.commands.create_reservation(hold.name, creation_fields(hold, now=now))
        except SlurmRefusal as refusal:
            fewer = replace(hold, cpus_each=hold.gpus_each)
            if refusal.answer is not SlurmAnswer.BUSY or fewer.cpus_each in (
                0,
                hold.cpus_each,
            ):
                raise
            self.commands.create_reservation(hold.name, creation_fields(fewer, now=now))

    def _make_again(self, hold: HoldInfo, seen: HoldInfo, *, now: datetime) -> None:
        self.commands.delete_reservation(hold.name)
        try:
            self._create(hold, now=now)
        except SlurmRefusal:
            self._create(seen, now=now)
            raise

    def _declined(self, hold: HoldInfo, refusal: SlurmRefusal) -> EngineDeclined:
        found = _refused(refusal)
        taken = found.answer in (EngineAnswer.TAKEN, EngineAnswer.BUSY)
        if not taken or not hold.gpus_each:
            return found
        try:
            rows = self.commands.reservations(self.commands.version())
        except SlurmFailure:
            return EngineDeclined(str(refusal), EngineAnswer.SHORT)
        others = [hold_of(one) for one in rows if one.name != hold.name]
        return EngineDeclined(
            str(refusal), EngineAnswer.SHORT, most_held_gpus(hold, others)
        )

    def release(self, name: str) -> None:
        """Delete the reservation."""
        try:
            self.commands.delete_reservation(name)
        except SlurmRefusal as refusal:
            if refusal.answer is not SlurmAnswer.UNKNOWN:
                raise _refused(refusal) from refusal
        except SlurmFailure as error:
            raise EngineAway(str(error)) from error

    def stop(self, name: str) -> None:
        """Cancel the jobs of the reservation, those of other submitters included."""
        try:
            self.commands.cancel_jobs(name)
        except SlurmFailure as error:
            raise EngineAway(str(error)) from error

    def observe(self, *, now: datetime) -> EngineView:
        """Read the reservations and the jobs in them."""
        try:
            self.commands.ping()
            version = self.commands.version()
            found = self.commands.reservations(version)
            running = self.commands.jobs_by_reservation()
        except SlurmFailure as error:
            raise EngineAway(str(error)) from error
        ours = [one for one in found if reservation_of(self.site, one.name) is not None]
        return EngineView(
            at=now,
            holds={one.name: hold_of(one) for one in ours},
            running=running,
        )


def creation_fields(hold: HoldInfo, *, now: datetime) -> dict[str, str]:
    """Return the fields of ``scontrol create reservation`` (scontrol(1))."""
    flags = [FLAG]
    if hold.idle_seconds:
        flags.append(f"PURGE_COMP={_clock(hold.idle_seconds)}")
    name = f"gres/gpu:{hold.kind}" if hold.kind else "gres/gpu"
    gpus = f"cpu={hold.cpus_each},{name}={hold.gpus_each}"
    return {
        # Slurm refuses a start in the past.
        "StartTime": _time(hold.start) if hold.start > now else "now",
        "EndTime": _time(hold.end),
        "Users": ",".join(hold.users),
        "Nodes": ",".join(hold.nodes),
        "Flags": ",".join(flags),
    } | ({"TRESPerNode": gpus} if hold.gpus_each else {})


def is_made_again(hold: HoldInfo, seen: HoldInfo) -> bool:
    """Return whether Slurm cannot change the one hold to the other."""
    moves = hold.nodes != seen.nodes and bool(hold.gpus_each or seen.gpus_each)
    return moves or (hold.gpus_each, hold.kind) != (seen.gpus_each, seen.kind)


def most_held_gpus(hold: HoldInfo, others: Iterable[HoldInfo]) -> int:
    """Return how many GPUs of a node of a hold the other holds have at one instant of
    its time, at most. One without a number has all of them."""
    near = [one for one in others if meets(one, hold)]
    instants = {max(one.start, hold.start) for one in near}
    return max(
        (
            sum(
                one.gpus_each or hold.of_each
                for one in near
                if node in one.nodes and one.start <= at < one.end
            )
            for node in hold.nodes
            for at in instants
        ),
        default=0,
    )


def changed_fields(hold: HoldInfo, seen: HoldInfo, *, now: datetime) -> dict[str, str]:
    """Return the fields of ``scontrol update`` that make the one hold the other.

    Slurm does not move the start of a reservation that has begun. With a new start and
    no end it would move the end, too.
    """
    fields = {}
    moves = hold.start != seen.start and seen.start > now
    if moves:
        fields["StartTime"] = _time(hold.start) if hold.start > now else "now"
    if moves or hold.end != seen.end:
        fields["EndTime"] = _time(hold.end)
    if hold.users != seen.users:
        fields["Users"] = ",".join(hold.users)
    if hold.nodes != seen.nodes:
        fields["Nodes"] = ",".join(hold.nodes)
    if hold.idle_seconds != seen.idle_seconds:
        purge = f"PURGE_COMP={_clock(hold.idle_seconds)}"
        key = "Flags+" if hold.idle_seconds else "Flags-"
        fields[key] = purge if hold.idle_seconds else "PURGE_COMP"
    return fields


def hold_of(found: SlurmReservation) -> HoldInfo:
    """Return a reservation of Slurm as a hold. Slurm names the GPUs and the processors
    of all its nodes together."""
    nodes = max(1, len(found.nodes))
    kinds = read_tres_kinds(found.tres)
    gpus = -(-read_tres_gpus(found.tres) // nodes)
    return HoldInfo(
        name=found.name,
        start=datetime.fromtimestamp(found.start, UTC),
        end=datetime.fromtimestamp(found.end, UTC),
        nodes=tuple(sorted(found.nodes)),
        users=tuple(sorted(found.users)),
        idle_seconds=found.purge_seconds,
        gpus_each=gpus,
        kind=kinds[0][0] if len(kinds) == 1 else "",
        cpus_each=read_tres_cpus(found.tres) // nodes if gpus else 0,
    )


def _refused(refusal: SlurmRefusal) -> EngineDeclined:
    answer = _ANSWERS.get(refusal.answer, EngineAnswer.OTHER)
    return EngineDeclined(str(refusal), answer)


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S}"


def _clock(seconds: int) -> str:
    """Return a span as scontrol reads it.

    >>> _clock(900)
    '00:15:00'
    """
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest:02}"
