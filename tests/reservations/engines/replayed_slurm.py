"""A Slurm that replays its transcripts: the sentences that 22.05 and 26.05 print."""

import json
import time
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
NO_RIGHT = "Invalid user id"
"""Of an operator's command by another user. It is also said of an unknown user."""
INVALID = "Requested reservation is invalid"


@dataclass(slots=True)
class SlurmState:
    """What the controller knows."""

    holds: dict[str, dict[str, str]] = field(default_factory=dict)
    """Fields of `scontrol` by the name of the reservation."""
    jobs: dict[str, int] = field(default_factory=dict)
    """Number of jobs by the name of the reservation."""
    queue: list[str] = field(default_factory=list)
    """More lines of `squeue`: number, state, Unix user, reservation and node."""
    gpus: dict[int, int] = field(default_factory=dict)
    """GPUs of a job of the queue, by its number; 1 if it is not named."""
    commands: list[str] = field(default_factory=list)
    """The commands that change something."""
    refuse: dict[str, str] = field(default_factory=dict)
    """The sentence with which a verb is refused, or a verb for a node: "create gp1"."""
    away: bool = False
    denied: bool = False
    """The portal's user is no operator, and PrivateData hides reservations from it."""
    hangs: bool = False
    """It answers a ping, and no command that changes something."""
    version: str = "22.05.8"
    seconds: float = 0.0
    """So long each command takes that changes something."""
    spent_seconds: float = 0.0
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
            return self._jobs() if "--json" in arguments else self._queue()
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
        if "JobId" in told:
            state.queue = [
                line.replace("(null)", told["Reservation"])
                if line.startswith(f"{told['JobId']}|")
                else line
                for line in state.queue
            ]
            return b""
        name = told.pop("ReservationName")
        state.commands.append(f"{verb} {name}")
        with self._answer(verb):
            self._carry_out(verb, name, told)
        return b""

    @contextmanager
    def _answer(self, verb: str) -> Iterator[None]:
        if self.state.hangs:
            raise SlurmSilent("scontrol: no answer in 8 s")
        self.state.spent_seconds += self.state.seconds
        until = time.monotonic() + self.state.spent_seconds
        if self.deadline is not None and until > self.deadline:
            raise SlurmSilent("scontrol: no time is left to ask")
        if self.state.denied:
            raise self._error(verb, NO_RIGHT)
        if verb in self.state.refuse:
            raise self._error(verb, self.state.refuse[verb])
        yield
        if self.state.lose_answer:
            self.state.lose_answer = False
            raise SlurmSilent("scontrol: no answer in 10 s")

    def _carry_out(self, verb: str, name: str, told: dict[str, str]) -> None:
        holds = self.state.holds
        if why := self.state.refuse.get(f"{verb} {told.get('Nodes')}"):
            raise self._error(verb, why)
        if verb == "create":
            if name in holds:
                raise self._error(verb, "Duplicate reservation name")
            number = _number(told)
            ignored = "IGNORE_JOBS" in told["Flags"]
            runs = [] if ignored else self._beside()
            short = self._gpus_held(told) + number > GPUS_OF_NODE - sum(runs)
            if short if number else runs:
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

    def _beside(self) -> list[int]:
        """Return the GPUs of each job that runs in no reservation."""
        lines = [line.split("|") for line in self.state.queue]
        return [
            self.state.gpus.get(int(words[0]), 1)
            for words in lines
            if words[1] == "RUNNING" and words[3] not in self.state.holds
        ]

    def _jobs(self) -> bytes:
        """As 26.05 prints the jobs that run (tests/data/slurm)."""
        lines = [line.split("|") for line in self._queue().decode().splitlines()]
        rows = [
            {
                "job_id": int(number),
                "job_state": [state],
                "user_name": user,
                "resv_name": "" if reservation == "(null)" else reservation,
                "nodes": node,
                "gres_detail": [f"gpu:a100:{self.state.gpus.get(int(number), 1)}"],
            }
            for number, state, user, reservation, node in lines
            if state == "RUNNING"
        ]
        return json.dumps({"jobs": rows, "errors": []}).encode()

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
        for name, told in ({} if self.state.denied else self.state.holds).items():
            start, end = (_seconds(told[f"{edge}Time"]) for edge in ("Start", "End"))
            lines.append(
                f"ReservationName={name} StartTime={start} EndTime={end} "
                f"Nodes={told['Nodes']} Flags=SPEC_NODES,{told['Flags']} TRES=cpu=4 "
                f"Users={told['Users']} State=ACTIVE"
            )
        return "\n".join(lines or ["No reservations in the system"]).encode()

    def _queue(self) -> bytes:
        names = [name for name, n in self.state.jobs.items() for _ in range(n)]
        lines = [f"{n}|RUNNING|alice|{name}|gp1" for n, name in enumerate(names, 100)]
        return "\n".join(
            ["9|PENDING|alice|(null)|", *self.state.queue, *lines]
        ).encode()


def _number(told: dict[str, str]) -> int:
    """Return how many GPUs of a node a reservation holds."""
    return int(told.get("TRESPerNode", "").rpartition("=")[2] or 0)


def _seconds(text: str) -> int:
    """Return Unix seconds of a time of scontrol. "now" is the time of the test."""
    at = NOW if text == "now" else datetime.fromisoformat(text).replace(tzinfo=UTC)
    return int(at.timestamp())
