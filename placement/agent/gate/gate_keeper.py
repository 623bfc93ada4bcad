"""Keep the node's gate as the last order wants it, twice a second.

A thread of the node worker. Each look reads the order from the node's folder, attaches
or detaches the program, writes the grants, tests a new gate from outside, and ends the
processes that still hold a GPU after their grant. A look that fails changes nothing in
the kernel, and the next one tries again.

The kernel's map is the only memory of grants. An ended or withdrawn grant stays in it
with an end in the past until no process of its user holds the device any more. A worker
that starts again therefore goes on where the previous one was.
"""

from __future__ import annotations

import logging
import pwd
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from placement.agent.gate.bpf_system_call import GateUnavailable
from placement.agent.gate.cgroup_gate import (
    DeviceGate,
    DeviceGrant,
    boot_ns,
    root_cgroup,
)
from placement.agent.gate.device_program import device_number, gated_majors
from placement.agent.gate.gate_self_test import Verdict, try_card
from placement.agent.gate.grant_file import read_order
from placement.agent.gate.uncovered_users import uncovered_users
from placement.agent.job_folder import NodeView
from placement.agent.process.device_holders import holders_of
from placement.agent.process.enforcement import Enforcer, read_gpus
from placement.agent.process.terminals import write_to_user
from placement.protocol.commands import remaining_seconds
from placement.protocol.device_grants import (
    MOST_COUNT,
    MOST_NAMES,
    GateFact,
    GateMode,
    GateOrder,
    GateState,
    UserRefusals,
)
from placement.protocol.node_refusals import OrderRefused
from placement.protocol.process_commands import (
    LOWEST_UID,
    NOBODY_UID,
    ProcessOrder,
    ProcessOrderKind,
)
from telemetry.agent.device_files import capabilities_major, path_of
from telemetry.agent.process_owners import (
    TICKS_PER_SECOND,
    JobRegistry,
    UserNames,
    boot_at,
)
from telemetry.agent.slow_answers import SlowAnswers
from telemetry.proc_stat import read_stat
from telemetry.protocol.errors import MessageRefused
from telemetry.protocol.hardware import NodeInfo

STEP_SECONDS = 0.5
TELL_SECONDS = 10.0
DEVICES_SECONDS = 300.0
DEVICES_AGAIN_SECONDS = 15.0
"""How soon the driver is asked again about a GPU that it did not list."""
AGAIN_SECONDS = 60.0
"""Pause after a gate that could not be attached, or failed its test."""
SETTLE_NS = 5 * 10**9
"""How long an ended grant waits for the web's next order: the time may go on."""
SAME_END_NS = 10**8
"""Ends that differ less are the same: both clocks are read one after the other."""
STOP_AGAIN_SECONDS = 60.0
ORDER_SECONDS = 60.0
Numbers = Mapping[str, tuple[tuple[int, int], ...]]
"""UUID of a GPU: its device files."""
Tell = Callable[[dict[str, Any]], bool]

logger = logging.getLogger(__name__)


class GateKeeper:
    """The gate of one node. `step` is one look."""

    def __init__(
        self,
        node: NodeView,
        enforcer: Enforcer,
        *,
        find_cgroup: Callable[[], Path] = root_cgroup,
        uid_of: Callable[[str], int | None] | None = None,
        look: Callable[[NodeView], list[bytes]] = read_gpus,
    ) -> None:
        self.node = node
        self._enforcer = enforcer
        self._find_cgroup = find_cgroup
        self._look = look
        self._uid_of = uid_of or UnixUids().uid
        self._cgroup = Path()
        self._gate: DeviceGate | None = None
        self._numbers: Numbers = {}
        self._asked_at = float("-inf")
        self._again_at = float("-inf")
        self._tested: Numbers | None = None
        """The devices with which the gate passed its test."""
        self._stopped: dict[tuple[int, int], float] = {}
        """When a process, by pid and start, was last ordered to end."""
        self._names = UserNames()
        self._uncovered = SlowAnswers[str](_uncovered_text, name="gate-groups")
        self._people: tuple[str, ...] = ()
        self._open_known = False
        self._told_at = float("-inf")
        self.fact: GateFact | None = None
        """The last report; None: no order was ever taken."""

    def run(self, stop: threading.Event, tell: Tell) -> None:
        """Look until `stop`. The gate stays as it is when the worker ends."""
        while not stop.wait(STEP_SECONDS):
            try:
                self.step(time.time(), tell)
            except Exception:
                logger.exception("a look at the device gate failed; it looks again")

    def step(self, now: float, tell: Tell) -> None:
        """Look once, and report what changed, or every ten seconds."""
        order = read_order(self.node.node_dir)
        if order is None:
            return
        before = self.fact
        self.fact = self._apply_order(order, now)
        changed = before is None or _words(before) != _words(self.fact)
        if changed and self.fact.reason:
            logger.error("device gate %s: %s", self.fact.state, self.fact.reason)
        due = changed or time.monotonic() - self._told_at >= TELL_SECONDS
        if due and tell(self.fact.message(now)):
            self._told_at = time.monotonic()

    def follows(self) -> bool:
        """Return whether the gate is as the newest order wants it, or cannot be so.

        A job that starts earlier might not be able to open its GPU yet.
        """
        order = read_order(self.node.node_dir)
        if order is None:
            return True
        return self.fact is not None and self.fact.sequence >= order.sequence

    def _apply_order(self, order: GateOrder, now: float) -> GateFact:
        """Make the gate as the order wants it, and return the report."""
        fact = GateFact(order.mode, GateState(order.mode.value), order.sequence)
        try:
            if order.mode is GateMode.OPEN:
                self._detach_gate()
                return fact
            self._open_known = False
            unknown, reason = self._unknown_names_and_fault(order, now)
            state = GateState.FAILED if reason else fact.state
            refusals = self._refusals()
        except GateUnavailable as error:
            unknown, refusals, reason = (), (), error.why
            state = GateState.UNAVAILABLE
            if order.mode is GateMode.OPEN or (self._gate and self._gate.attached):
                state = GateState.FAILED
        return GateFact(
            order.mode,
            state,
            order.sequence,
            reason=reason,
            uncovered=self._uncovered_names(),
            unknown=unknown,
            refusals=refusals,
        )

    def _detach_gate(self) -> None:
        if self._open_known:
            return
        try:
            gate = self._device_gate()
        except GateUnavailable:
            self._open_known = True
            return  # a machine that cannot have a gate has none
        if gate.attached or gate.find():
            gate.detach()
            logger.warning("the device gate is open: the operator took it away")
        self._tested, self._again_at = None, float("-inf")
        self._open_known = True

    def _unknown_names_and_fault(
        self, order: GateOrder, now: float
    ) -> tuple[tuple[str, ...], str]:
        """Return names that this node does not know, and the fault of the gate.

        Raises:
            GateUnavailable: with the reason. An attached program stays attached.
        """
        gate = self._device_gate()
        numbers = self._known_numbers(order)
        majors = gated_majors(
            {pair for pairs in numbers.values() for pair in pairs}, capabilities_major()
        )
        if not majors:
            raise GateUnavailable("the driver tells no device file of any GPU")
        paused = time.monotonic() < self._again_at
        fresh = not gate.attached and not gate.find()
        if fresh and paused and self.fact is not None:
            return self.fact.unknown, self.fact.reason
        if fresh:
            # Grants first: a holder is never refused.
            gate.attach(majors, refuse=False)
        unknown = self._write_grants(gate, order, numbers, now)
        refuse = order.mode is GateMode.GATED
        gate.attach(majors, refuse=refuse)
        if not refuse or self._tested == numbers:
            return unknown, ""
        if paused and self.fact is not None:
            return unknown, self.fact.reason
        reason = self._test(gate, numbers, fresh=fresh)
        if reason:
            self._again_at = time.monotonic() + AGAIN_SECONDS
        else:
            self._tested = numbers
        return unknown, reason

    def _device_gate(self) -> DeviceGate:
        if self._gate is None:
            self._cgroup = self._find_cgroup()
            self._gate = DeviceGate(self._cgroup)
        return self._gate

    def _test(self, gate: DeviceGate, numbers: Numbers, *, fresh: bool) -> str:
        """Return why the gate does not work; "" if it does."""
        first = min(pair for pairs in numbers.values() for pair in pairs)
        path = path_of(*first)
        if path is None:
            verdict, why = Verdict.UNKNOWN, "the card has no file below /dev"
        else:
            verdict, why = try_card(path, self._cgroup)
        if verdict is Verdict.OPENED or (fresh and verdict is Verdict.UNKNOWN):
            # A gate that was not tested does not count. One that worked before stays.
            gate.detach()
        return why

    # --- devices --------------------------------------------------------------------

    def _known_numbers(self, order: GateOrder) -> Numbers:
        """Return the devices of each GPU; the last known ones while the driver is
        silent."""
        wanted = {uuid for grant in order.grants for uuid in grant.gpu_uuids}
        age_seconds = time.monotonic() - self._asked_at
        missing = not self._numbers or not wanted <= self._numbers.keys()
        pause = DEVICES_AGAIN_SECONDS if missing else DEVICES_SECONDS
        if age_seconds >= pause:
            self._asked_at = time.monotonic()
            try:
                roster = NodeInfo.from_message(self._look(self.node)[0])
            except (
                OSError,
                subprocess.SubprocessError,
                IndexError,
                MessageRefused,
            ) as error:
                logger.error("the devices of the GPUs are not known: %s", error)
            else:
                self._numbers = {
                    gpu.uuid: gpu.device_numbers
                    for gpu in roster.gpus
                    if gpu.device_numbers
                }
        return self._numbers

    # --- grants ---------------------------------------------------------------------

    def _write_grants(
        self, gate: DeviceGate, order: GateOrder, numbers: Numbers, now: float
    ) -> tuple[str, ...]:
        """Write the grants of an order, and end those that it does not have. Return
        the names that this node does not know."""
        boot, unknown = boot_ns(), set()
        wanted: dict[DeviceGrant, int] = {}
        for grant in order.grants:
            left = remaining_seconds(grant.until, order.issued_at, now)
            end_ns = boot + round(left * 1e9)
            for user in grant.users if left else ():
                uid = self._uid_of(user)
                if uid is None:
                    unknown.add(user)
                    continue
                for uuid in grant.gpu_uuids:
                    for pair in numbers.get(uuid, ()):
                        key = DeviceGrant(uid, device_number(*pair))
                        wanted[key] = max(end_ns, wanted.get(key, 0))
        known = gate.grants()
        for key, end_ns in wanted.items():
            if key not in known or abs(known[key] - end_ns) > SAME_END_NS:
                gate.put(key, end_ns)
            if known.get(key, boot) < boot:
                self._enforcer.withdraw(key.uid, key.device)
        for key in known.keys() - wanted.keys():
            self._end(gate, key, known[key], order, numbers)
        return tuple(sorted(unknown)[:MOST_NAMES])

    def _end(
        self,
        gate: DeviceGate,
        key: DeviceGrant,
        end_ns: int,
        order: GateOrder,
        numbers: Numbers,
    ) -> None:
        """End a grant, then the processes that still hold its device."""
        boot = boot_ns()
        if end_ns > boot:
            # The web has withdrawn it. Nothing can open the device from here on.
            gate.put(key, 0)
        elif boot - end_ns < SETTLE_NS:
            return
        if order.mode is not GateMode.GATED:
            gate.remove(key)
            return
        try:
            holders = holders_of(key.uid, key.device)
        except TimeoutError as error:
            logger.error("%s; it looks again", error)
            return
        if not holders:
            gate.remove(key)
            return
        uuid = next(
            (
                uuid
                for uuid, pairs in numbers.items()
                if key.device in {device_number(*pair) for pair in pairs}
            ),
            "",
        )
        registry = JobRegistry(self.node.node_dir)
        registry.refresh(time.monotonic())
        for pid in sorted(holders):
            self._stop(pid, key, uuid, order.grace_seconds, registry)

    def _stop(
        self,
        pid: int,
        key: DeviceGrant,
        uuid: str,
        grace_seconds: float,
        registry: JobRegistry,
    ) -> None:
        """Have the escalation end one process: TERM, grace, KILL."""
        found = read_stat(pid)
        # A job of the portal is ended by its shim.
        if found is None or found.dead or registry.job_of(pid, found) is not None:
            return
        one, now = (pid, found.start_ticks), time.time()
        if time.monotonic() - self._stopped.get(one, float("-inf")) < (
            STOP_AGAIN_SECONDS + grace_seconds
        ):
            return
        try:
            order = ProcessOrder(
                kind=ProcessOrderKind.STOP,
                node=self.node.name,
                nonce=f"gate{pid}x{found.start_ticks}x{key.device}",
                issued_at=now,
                expires_at=now + ORDER_SECONDS,
                pid=pid,
                uid=key.uid,
                started_at=boot_at() + found.start_ticks / TICKS_PER_SECOND,
                gpu_uuid=uuid,
                grace_seconds=grace_seconds,
            )
        except OrderRefused as error:
            logger.error("process %s is not ended: %s", pid, error)
            return
        if len(self._stopped) > 10_000:
            self._stopped.clear()
        self._stopped[one] = time.monotonic()
        logger.warning("process %s holds a GPU after its user's time", pid)
        write_to_user(
            key.uid,
            f"GPU Portal: your time on the GPU is over. Your process {pid} still "
            f"holds it and is ended now, by force after {grace_seconds:.0f} s.",
        )
        self._enforcer.accept_from_gate(order, key.device)

    def _refusals(self) -> tuple[UserRefusals, ...]:
        """Return who opened GPUs without a grant, the most frequent ones first."""
        if self._gate is None or not self._gate.attached:
            return ()
        found = self._gate.refusals()
        found.pop(NOBODY_UID, None)  # the gate's own test
        most = sorted(found.items(), key=lambda item: -item[1])[:MOST_NAMES]
        self._names.refresh(time.monotonic())
        return tuple(
            UserRefusals(uid, min(count, MOST_COUNT - 1), self._names.name(uid) or "")
            for uid, count in most
        )

    def _uncovered_names(self) -> tuple[str, ...]:
        """Return the people that the gate cannot stop, as they were last known."""
        self._uncovered.refresh(time.monotonic())
        answer = self._uncovered.get("")
        if answer.known:
            self._people = tuple((answer.value or "").splitlines())
        return self._people


class UnixUids:
    """Uids by Unix name, as long as the directory of users was ever reached."""

    def __init__(self) -> None:
        self._answers = SlowAnswers[str](_uid_text, name="gate-uids")
        self._known: dict[str, int] = {}

    def uid(self, name: str) -> int | None:
        """Return the uid of a person. None: no uid is known (yet)."""
        self._answers.refresh(time.monotonic())
        answer = self._answers.get(name)
        if answer.known:
            if answer.value is None:
                self._known.pop(name, None)
            else:
                self._known[name] = int(answer.value)
        return self._known.get(name)


def _uid_text(name: str) -> str | None:
    """Return the uid of a person's account; None: there is no such account."""
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        return None
    return str(uid) if uid >= LOWEST_UID and uid != NOBODY_UID else None


def _uncovered_text(_key: str) -> str:
    return "\n".join(uncovered_users())


def _words(fact: GateFact) -> tuple[object, ...]:
    """Return the parts whose changes are reported at once."""
    return fact.mode, fact.state, fact.reason, fact.uncovered, fact.unknown
