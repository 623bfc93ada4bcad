"""Slurm as an engine: one advance reservation of whole nodes for each hold."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from reservations.engines.engine_port import (
    EngineAnswer,
    EngineAway,
    EngineCapabilities,
    EngineDeclined,
    EngineFailure,
    EngineView,
    HoldInfo,
)
from reservations.rules.engine_names import reservation_of
from telemetry.slurm.placed_jobs import PlacedJob
from telemetry.slurm.slurm_commands import SlurmCommands
from telemetry.slurm.slurm_output import SlurmFailure
from telemetry.slurm.slurm_records import SlurmReservation
from telemetry.slurm.slurm_refusals import SlurmAnswer, SlurmRefusal

log = logging.getLogger(__name__)
FLAG = "MAGNETIC"
"""Jobs of its users run in the reservation without naming it."""
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
        """Return that Slurm holds whole nodes."""
        return EngineCapabilities(holds=True, whole_nodes=True)

    def within(self, seconds: float) -> SlurmEngine:
        """Return this engine with commands that end in time."""
        deadline = time.monotonic() + seconds
        return replace(self, commands=replace(self.commands, deadline=deadline))

    def reserve(self, hold: HoldInfo, *, now: datetime, lost: bool = False) -> None:
        """Create a reservation, or change the one that has the name.

        One in which jobs of other people run is not taken over.
        """
        fields = creation_fields(hold, now=now)
        try:
            self.commands.create_reservation(hold.name, fields)
        except SlurmRefusal as refusal:
            if lost and refusal.answer is SlurmAnswer.BUSY:
                self._reserve_around(hold, fields, refusal)
                return
            # An earlier request may have been carried out although its answer was lost.
            seen = None
            if refusal.answer in (SlurmAnswer.DUPLICATE, SlurmAnswer.OVERLAP):
                view = self.observe(now=now)
                seen = view.holds.get(hold.name)
                if seen and view.running.get(hold.name) and seen.users != hold.users:
                    seen = None
            if seen is None:
                raise self._declined(refusal) from refusal
            self.change(hold, seen=seen, now=now)
        except SlurmFailure as error:
            raise EngineAway(str(error)) from error

    def _reserve_around(
        self, hold: HoldInfo, fields: dict[str, str], refusal: SlurmRefusal
    ) -> None:
        """Create a reservation beside jobs of its users, and let them count to it.

        They ran in the reservation that Slurm has lost, so they are not in the way.

        Raises:
            EngineDeclined: other people's jobs run there, or none that is shown.
        """
        try:
            jobs = _jobs_on(hold, self.commands.placed_jobs())
            if not jobs or any(job.user not in hold.users for job in jobs):
                raise self._declined(refusal) from refusal
            flags = f"{fields['Flags']},IGNORE_JOBS"
            self.commands.create_reservation(hold.name, fields | {"Flags": flags})
        except SlurmRefusal as again:
            raise self._declined(again) from again
        except SlurmFailure as error:
            raise EngineAway(str(error)) from error
        for job in jobs:
            try:
                self.commands.move_job(job.job_id, hold.name)
            except SlurmFailure as error:
                # `observe` counts it all the same.
                log.warning("job %s stays beside %s: %s", job.job_id, hold.name, error)

    def change(self, hold: HoldInfo, *, seen: HoldInfo, now: datetime) -> None:
        """Change the fields that differ, all by one command."""
        fields = changed_fields(hold, seen, now=now)
        try:
            if fields:
                self.commands.update_reservation(hold.name, fields)
        except SlurmRefusal as refusal:
            raise self._declined(refusal) from refusal
        except SlurmFailure as error:
            raise EngineAway(str(error)) from error

    def check_rights(self) -> None:
        """Check that the portal's user is an operator. PrivateData of slurm.conf hides
        reservations from others."""
        try:
            if not self.commands.may_reserve():
                why = "the portal's user has no right to reserve"
                raise EngineDeclined(why, EngineAnswer.DENIED)
        except SlurmFailure as error:
            raise EngineAway(str(error)) from error

    def release(self, name: str) -> None:
        """Delete the reservation."""
        try:
            self.commands.delete_reservation(name)
        except SlurmRefusal as refusal:
            if refusal.answer is not SlurmAnswer.UNKNOWN:
                raise self._declined(refusal) from refusal
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
            jobs = self.commands.placed_jobs()
        except SlurmFailure as error:
            raise EngineAway(str(error)) from error
        holds = {one.name: hold_of(one) for one in found if self._is_ours(one)}
        told = [(job, _hold_name_of(job, holds.values(), now=now)) for job in jobs]
        return EngineView(
            at=now,
            holds=holds,
            running=Counter(name for job, name in told if name and job.runs),
            used=frozenset(name for _job, name in told if name),
            others=tuple(hold_of(one) for one in found if not self._is_ours(one)),
        )

    def _declined(self, refusal: SlurmRefusal) -> EngineFailure:
        """Return a refusal as the port has it.

        Slurm says "Invalid user id" of an unknown user, and to a portal that may not
        reserve.
        """
        answer = _ANSWERS.get(refusal.answer, EngineAnswer.OTHER)
        try:
            if answer is EngineAnswer.NO_USER and not self.commands.may_reserve():
                answer = EngineAnswer.DENIED
        except SlurmFailure as error:
            return EngineAway(str(error))
        return EngineDeclined(str(refusal), answer)

    def _is_ours(self, found: SlurmReservation) -> bool:
        return reservation_of(self.site, found.name) is not None


def creation_fields(hold: HoldInfo, *, now: datetime) -> dict[str, str]:
    """Return the fields of ``scontrol create reservation`` (scontrol(1))."""
    flags = [FLAG]
    if hold.idle_seconds:
        flags.append(f"PURGE_COMP={_clock(hold.idle_seconds)}")
    return {
        # Slurm refuses a start in the past.
        "StartTime": _time(hold.start) if hold.start > now else "now",
        "EndTime": _time(hold.end),
        "Users": ",".join(hold.users),
        "Nodes": ",".join(hold.nodes),
        "Flags": ",".join(flags),
    }


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
    """Return a reservation of Slurm as a hold."""
    return HoldInfo(
        name=found.name,
        start=datetime.fromtimestamp(found.start, UTC),
        end=datetime.fromtimestamp(found.end, UTC),
        nodes=tuple(sorted(found.nodes)),
        users=tuple(sorted(found.users)),
        idle_seconds=found.purge_seconds,
    )


def _jobs_on(hold: HoldInfo, jobs: Iterable[PlacedJob]) -> list[PlacedJob]:
    """Return the jobs that run on a node of a hold."""
    nodes = set(hold.nodes)
    return [job for job in jobs if job.runs and nodes & set(job.nodes)]


def _hold_name_of(job: PlacedJob, holds: Iterable[HoldInfo], *, now: datetime) -> str:
    """Return the name of the hold to which a job counts; "": to none.

    After Slurm has lost a reservation, its jobs have none, and run on beside the new
    one.
    """
    if job.reservation:
        return job.reservation
    for hold in holds:
        inside = job.runs and job.user in hold.users and set(job.nodes) <= {*hold.nodes}
        if inside and hold.start <= now < hold.end:
            return hold.name
    return ""


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
