"""A Slurm that replays its transcripts: the sentences that 22.05 and 26.05 print."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from telemetry.slurm.slurm_commands import SlurmCommands, SlurmSilent
from telemetry.slurm.slurm_output import SlurmOutputInvalid
from tests.reservations.conftest import NOW

CORE_BASED = "Core-based reservation can not be updated"
GPUS_OF_NODE = 4
OVERLAP = "Requested reservation overlaps with another reservation"
IN_USE = "Requested reservation is in use"
BUSY = "Requested nodes are busy"
INVALID = "Requested reservation is invalid"


@dataclass(slots=True)
class SlurmState:
    """What the controller knows."""

    holds: dict[str, dict[str, str]] = field(default_factory=dict)
    """Fields of `scontrol` by the name of the reservation."""
    jobs: dict[str, int] = field(default_factory=dict)
    """Number of jobs by the name of the reservation."""
    commands: list[str] = field(default_factory=list)
    """The commands that change something."""
    refuse: dict[str, str] = field(default_factory=dict)
    """The sentence with which a verb is refused."""
    away: bool = False
    hangs: bool = False
    """It answers a ping, and no command that changes something."""
    version: str = "22.05.8"
    lose_answer: bool = False
    """The next command is carried out, and its answer is lost."""


@dataclass(frozen=True, slots=True)
class ReplayedSlurm(SlurmCommands):
    """Slurm's commands without Slurm."""

    state: SlurmState = field(default_factory=SlurmState)

    def _run(self, program: str, *arguments: str) -> bytes:
        state = self.state
        if "--version" in arguments:
            return f"slurm-wlm {state.version}\n".encode()
        if state.away:
            raise SlurmSilent("Slurmctld(primary) at vm is DOWN")
        if program == "squeue":
            return self._queue()
        if program == "scancel":
            state.commands.append("scancel")
            state.jobs.pop(arguments[0].partition("=")[2], None)
            return b""
        verb, *words = arguments
        if verb == "ping":
            return b"Slurmctld(primary) at vm is UP\n"
        if "show" in arguments:
            return self._json() if "--json" in arguments else self._listing()
        told = dict(word.partition("=")[::2] for word in words if "=" in word)
        name = told.pop("ReservationName")
        state.commands.append(f"{verb} {name}")
        with self._answer(verb):
            self._carry_out(verb, name, told)
        return b""

    @contextmanager
    def _answer(self, verb: str) -> Iterator[None]:
        if self.state.hangs:
            raise SlurmSilent("scontrol: no answer in 8 s")
        if verb in self.state.refuse:
            raise self._error(verb, self.state.refuse[verb])
        yield
        if self.state.lose_answer:
            self.state.lose_answer = False
            raise SlurmSilent("scontrol: no answer in 10 s")

    def _carry_out(self, verb: str, name: str, told: dict[str, str]) -> None:
        holds = self.state.holds
        if verb == "create":
            if name in holds:
                raise self._error(verb, "Duplicate reservation name")
            if self._gpus_held(told) + _number(told) > GPUS_OF_NODE:
                raise self._error(verb, BUSY)
            holds[name] = told
        elif name not in holds:
            raise self._error(verb, INVALID)
        elif verb == "delete":
            if self.state.jobs.get(name):
                raise self._error(verb, IN_USE)
            del holds[name]
        elif "Nodes" in told and "TRESPerNode" in holds[name]:
            raise self._error(verb, CORE_BASED)
        else:
            flags = holds[name]["Flags"].split(",")
            if told.pop("Flags-", ""):
                flags = [one for one in flags if not one.startswith("PURGE_COMP")]
            holds[name] |= {**told, "Flags": ",".join(flags)}

    def _gpus_held(self, told: dict[str, str]) -> int:
        """Return how many GPUs of the node other reservations hold at that time."""
        start, end = _seconds(told["StartTime"]), _seconds(told["EndTime"])
        return sum(
            _number(one)
            for one in self.state.holds.values()
            if one["Nodes"] == told["Nodes"]
            and _seconds(one["StartTime"]) < end
            and start < _seconds(one["EndTime"])
        )

    def _json(self) -> bytes:
        """As 26.05 prints it (tests/data/slurm)."""
        rows = [
            {
                "name": name,
                "start_time": {"set": True, "number": _seconds(told["StartTime"])},
                "end_time": {"set": True, "number": _seconds(told["EndTime"])},
                "node_list": told["Nodes"],
                "users": told["Users"],
                "flags": ["SPEC_NODES", "MAGNETIC", "TRES_PER_NODE"],
                "tres": f"{told['TRESPerNode']},gres/gpu={_number(told)}"
                if "TRESPerNode" in told
                else "cpu=8",
            }
            for name, told in self.state.holds.items()
        ]
        return json.dumps({"reservations": rows, "errors": []}).encode()

    def _error(self, verb: str, sentence: str) -> SlurmOutputInvalid:
        return SlurmOutputInvalid(f"scontrol: Error {verb} the reservation: {sentence}")

    def _listing(self) -> bytes:
        lines = []
        for name, told in self.state.holds.items():
            start, end = (_seconds(told[f"{edge}Time"]) for edge in ("Start", "End"))
            lines.append(
                f"ReservationName={name} StartTime={start} EndTime={end} "
                f"Nodes={told['Nodes']} Flags=SPEC_NODES,{told['Flags']} TRES=cpu=4 "
                f"Users={told['Users']} State=ACTIVE"
            )
        return "\n".join(lines or ["No reservations in the system"]).encode()

    def _queue(self) -> bytes:
        names = [name for name, n in self.state.jobs.items() for _ in range(n)]
        return "\n".join(["(null)", *names]).encode()


def _number(told: dict[str, str]) -> int:
    """Return how many GPUs of a node a reservation holds."""
    return int(told.get("TRESPerNode", "").rpartition("=")[2] or 0)


def _seconds(text: str) -> int:
    """Return Unix seconds of a time of scontrol. "now" is the time of the test."""
    at = NOW if text == "now" else datetime.fromisoformat(text).replace(tzinfo=UTC)
    return int(at.timestamp())
