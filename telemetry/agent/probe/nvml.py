"""The probe that reads real Gpus, through the driver's own library.

Runs in the sampling child. A Gpu that cannot be read never affects the others: values
that it cannot report are None, and a lost Gpu stays in the list as lost. Handles are
kept by UUID, never by index. After a driver reload they are invalid. `reopen` then
restarts NVML and finds the Gpus by UUID.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from telemetry import paths
from telemetry.agent.optional_packages import installed
from telemetry.agent.probe import machine, slow_facts
from telemetry.agent.probe.driver_reload import ReloadWatch
from telemetry.agent.probe.gpu_probe import NvmlGpu
from telemetry.agent.probe.interconnect import TopologyQuery
from telemetry.agent.probe.link_rates import link_rates
from telemetry.agent.probe.nvml_call import DriverGone, GpuLost
from telemetry.agent.probe.xid_events import XidWatch
from telemetry.agent.process_owners import DEFUNCT, ProcessOwners, boot_id
from telemetry.protocol.errors import ProbeUnavailable
from telemetry.protocol.hardware import (
    MOST_MEMORY_BYTES,
    Backend,
    Isolation,
    NodeInfo,
    NotIsolated,
)
from telemetry.protocol.sample import (
    MOST_PID,
    GpuAnswer,
    GpuReading,
    MigInstance,
    NodeSample,
    ProcessReading,
    XidEvent,
    largest,
)

LINKS_WITHIN_SECONDS = 2.0
"""How long a start waits for the links between the Gpus. On a slow bus they follow
later."""
SLOW_EVERY_SECONDS = 10.0
"""ECC, row remaps and limits rarely change, and each costs a call."""
BOUND_DIR = Path("/sys/bus/pci/drivers/nvidia")
"""Links named after the PCI addresses that the driver serves now. NVML's own count
dates from its start."""


class NvmlProbe:
    """Reads the Gpus of this machine through NVML.

    `read_gpu` may be called for different Gpus from different threads. Everything else
    belongs to one thread.
    """

    backend = Backend.NVML

    def __init__(
        self,
        node: str,
        *,
        node_dir: Path | None = None,
        isolation: Isolation = Isolation.NONE,
        not_isolated: NotIsolated = NotIsolated.UNKNOWN,
        clock: Callable[[], float] = time.monotonic,
        bound_dir: Path = BOUND_DIR,
    ) -> None:
        self._node = node
        self._owners = ProcessOwners(node_dir)
        self._isolation, self._not_isolated = isolation, not_isolated
        self._clock = clock
        self._bound_dir = bound_dir
        self._cards: dict[str, NvmlGpu] = {}
        self._unnamed: list[int] = []
        self._listed: tuple[int | None, frozenset[str]] = (None, frozenset())
        self._counted_at = float("-inf")
        self._info = NodeInfo(node=node, backend=self.backend, gpus=())
        self._xids = XidWatch(())
        self._topology = TopologyQuery(())
        self._watched: frozenset[str] = frozenset()
        self._running = False
        self._watch = ReloadWatch()
        self._seq = 0

    @property
    def info(self) -> NodeInfo:
        """The roster. It is a new object after each change."""
        if not self._info.links_known and (links := self._topology.wait(0)) is not None:
            self._info = replace(self._info, links=links, links_known=True)
        return self._info

    @property
    def uuids(self) -> tuple[str, ...]:
        """Every Gpu known since the start, lost ones included."""
        return tuple(self._cards)

    @property
    def unnamed(self) -> tuple[int, ...]:
        """Indices of Gpus that were lost at the start. They have no UUID and are not
        read."""
        return tuple(self._unnamed)

    @property
    def refused(self) -> str:
        """A clause on what the driver refuses for lack of rights; "" if nothing."""
        cards = self._cards.values()
        closed = sorted(card.info.index for card in cards if card.processes_refused)
        if not closed:
            return ""
        numbers = ", ".join(map(str, closed))
        return f"the driver does not let it see the processes on GPU {numbers}"

    @property
    def stale(self) -> bool:
        """Whether the driver seems to have been reloaded (see `reopen`)."""
        return self._watch.stale

    @property
    def urgent(self) -> bool:
        """Whether nothing can be read before `reopen`."""
        return self._watch.urgent

    @property
    def stuck(self) -> bool:
        """Whether a thread of this probe is stuck in a call of the driver."""
        return self._xids.stuck or self._topology.stuck

    def open(self) -> NodeInfo:
        """Start NVML and list the Gpus. Raises ProbeUnavailable, one clear line."""
        machine.start()
        self._running = True
        try:
            cards, self._unnamed = machine.find_cards()
        except ProbeUnavailable:
            self.close()
            raise
        if not cards and not self._cards:
            self.close()
            lost = f"all {len(self._unnamed)} GPUs are lost" if self._unnamed else ""
            why = lost or "there is a driver but no GPU"
            raise ProbeUnavailable(backend="nvml", why=why, no_gpu=not lost)
        found = {card.info.uuid: card for card in cards}
        taken = {card.info.index for card in cards}
        for uuid, gone in self._cards.items():
            if uuid in found:
                continue
            # The driver gave its index to another Gpu. No two Gpus share an index.
            index = gone.info.index
            if index in taken:
                index = max(taken) + 1
            taken.add(index)
            info = replace(gone.info, lost=True, index=index)
            found[uuid] = NvmlGpu(info, handle=None)
        self._cards = found
        self._listed = self._list()
        self._xids = XidWatch(found.values())
        self._watch.note_success()
        self._topology = TopologyQuery(found.values())
        known = self._topology.wait(LINKS_WITHIN_SECONDS)
        self._info = NodeInfo(
            node=self._node,
            backend=self.backend,
            gpus=tuple(card.info for card in found.values()),
            links=known or (),
            links_known=known is not None,
            driver_version=machine.driver_version(),
            cuda_version=machine.cuda_version(),
            boot_id=boot_id(),
            isolation=self._isolation,
            not_isolated=self._not_isolated,
            extras=installed(),
            release=paths.release(),
        )
        return self._info

    def close(self) -> None:
        """Release the driver. Safe to call twice."""
        if self._running:
            self._running = False
            self._topology.close()
            self._xids.close()
            machine.stop()

    def reopen(self) -> None:
        """Restart NVML after a reload, if the back-off allows it now.

        Raises ProbeUnavailable while the driver is away; call again next second.
        """
        now = self._clock()
        if self._watch.due(now):
            self._watch.note_try(now)
            self.close()
            self.open()

    def watch(self, uuids: frozenset[str]) -> None:
        """Read the link rates of these Gpus from now on, and of no others."""
        for uuid in self._watched - uuids:
            if uuid in self._cards:
                self._cards[uuid].nvlink = None
        self._watched = uuids

    def take_xids(self, uuid: str) -> tuple[XidEvent, ...]:
        """Return the events of a Gpu since the last call, oldest first."""
        return self._xids.take_events(uuid)

    def begin(self, at: float) -> None:
        """Prepare a Sample; called once before its Gpus are read. `at`: Unix
        seconds."""
        del at  # the driver only knows current values
        now = self._clock()
        self._owners.refresh(now)
        self._watch.judge({x for x, card in self._cards.items() if card.handle})
        self._xids.poll()

    def read(self, at: float) -> NodeSample:
        """Return one Sample of all Gpus, read one after the other. `at`: Unix
        seconds."""
        started = time.perf_counter()
        self.begin(at)
        gpus = tuple(self.read_gpu(uuid) for uuid in self.uuids)
        self._seq += 1
        return NodeSample(
            node=self._node,
            at=at,
            gpus=gpus,
            seq=self._seq,
            load1=os.getloadavg()[0],
            took_seconds=time.perf_counter() - started,
        )

    def answered_at(self, uuid: str) -> float:
        """Return when a Gpu last returned from a call (monotonic seconds)."""
        card = self._cards.get(uuid)
        return card.answered_at if card else float("-inf")

    def read_gpu(self, uuid: str) -> GpuReading:
        """Read one Gpu now. Never raises: values that cannot be read are None."""
        card = self._cards[uuid]
        card.answered = card.failed = False
        try:
            self._read_slow(card)
            reading = self._read_fast(card) if card.handle is not None else None
        except GpuLost:
            reading = None
        except DriverGone:
            self._watch.note_proof()
            return GpuReading(uuid=uuid, state=GpuAnswer.ERROR)
        if reading is None:
            return GpuReading(uuid=uuid, state=GpuAnswer.LOST)
        silent = card.failed and not card.answered
        self._watch.note(uuid, answered=not silent)
        return GpuReading(uuid=uuid, state=GpuAnswer.ERROR) if silent else reading

    def _read_slow(self, card: NvmlGpu) -> None:
        """Read, every 10 s, values that rarely change, and check whether a lost Gpu is
        back."""
        now = self._clock()
        if now - card.slow_at < SLOW_EVERY_SECONDS:
            return
        # The Gpus do this in different seconds, so that no Sample costs much more.
        early = card.info.index % SLOW_EVERY_SECONDS if card.slow_at < 0 else 0
        card.slow_at = now - early
        card.mute.clear()
        if card.handle is None:
            if machine.is_back(uuid=card.info.uuid):
                self._watch.note_proof(urgent=False)
            return
        if (
            self._other_gpus(now)
            or self._split_otherwise(card)
            or _reports_memory_size(card)
        ):
            self._watch.note_proof(urgent=False)
        card.slow = slow_facts.readings(card)

    def _other_gpus(self, now: float) -> bool:
        """Return whether Gpus came or went since the roster. One Gpu checks for all."""
        if now - self._counted_at < SLOW_EVERY_SECONDS:
            return False
        self._counted_at = now
        if any(machine.is_back(index=x) for x in self._unnamed):
            return True
        count, bound = self._list()
        known, known_bound = self._listed
        return bound != known_bound or (count is not None and count != known)

    def _list(self) -> tuple[int | None, frozenset[str]]:
        """Return how many Gpus NVML lists, and the PCI addresses that the driver
        serves."""
        try:
            names = {x.name for x in self._bound_dir.iterdir() if ":" in x.name}
        except OSError:  # no NVIDIA driver, or a container without /sys
            names = set()
        return machine.count(), frozenset(names)

    def _split_otherwise(self, card: NvmlGpu) -> bool:
        """Return whether the card's MIG instances changed since the roster."""
        split = None if card.info.mig_parent else slow_facts.split(card)
        if split is None or split != card.info.mig:
            return split is not None
        known = {x.info.uuid for x in self._parts(card)}
        return bool(known or split) and known != machine.instance_uuids(card)

    def _parts(self, card: NvmlGpu) -> list[NvmlGpu]:
        """Return the instances of a split card."""
        here = [x for x in self._cards.values() if x.handle is not None]
        return [x for x in here if x.info.mig_parent == card.info.uuid]

    def _instances(self, card: NvmlGpu) -> tuple[MigInstance, ...]:
        return tuple(
            MigInstance(
                uuid=part.info.uuid,
                name=part.info.name,
                memory_total_bytes=part.info.memory_total_bytes,
                memory_used_bytes=part.known_memory.used,
            )
            for part in self._parts(card)
        )

    def _read_fast(self, card: NvmlGpu) -> GpuReading:
        utilization, memory = card.utilization(), card.memory()
        joules, memory_celsius = card.energy_and_memory_heat()
        mig, watched = card.info.mig, card.info.uuid in self._watched
        return GpuReading(
            uuid=card.info.uuid,
            util_pct=utilization.gpu,
            memory_util_pct=utilization.memory,
            encoder_pct=card.encoder_pct(),
            decoder_pct=card.decoder_pct(),
            memory_used_bytes=memory.used,
            memory_reserved_bytes=memory.reserved,
            memory_total_bytes=memory.total,
            temperature_celsius=card.celsius(),
            memory_temperature_celsius=memory_celsius,
            fan_pct=card.fan_pct(),
            power_watts=card.watts(),
            sm_clock_mhz=card.sm_mhz(),
            memory_clock_mhz=card.memory_mhz(),
            pstate=card.pstate(),
            throttle=card.throttle(),
            energy_joules=joules,
            # A split card's instances report its processes.
            processes=None if mig else self._processes(card, memory.total),
            mig_instances=self._instances(card) if mig else (),
            **card.slow,
            **(link_rates(card, self._clock()) if watched else {}),
        )

    def _processes(
        self, card: NvmlGpu, total_bytes: int | None
    ) -> tuple[ProcessReading, ...] | None:
        """Return all processes on the Gpu; None if the driver cannot list them."""
        found = card.process_memory()
        if found is None:
            return None
        sm_pct = card.process_sm_pct() if found else {}
        readings = []
        for pid, memory_bytes in found.items():
            if not 0 < pid <= MOST_PID:
                continue
            owner = self._owners.owner(pid)
            if owner is DEFUNCT:
                continue
            too_much = (memory_bytes or 0) > (total_bytes or MOST_MEMORY_BYTES)
            readings.append(
                ProcessReading(
                    pid=pid,
                    uid=owner.uid,
                    user=owner.user,
                    command=owner.command,
                    memory_bytes=None if too_much else memory_bytes,
                    sm_pct=None if sm_pct is None else sm_pct.get(pid, 0),
                    started_at=owner.started_at,
                    job=owner.job,
                )
            )
        return largest(readings)


def _reports_memory_size(card: NvmlGpu) -> bool:
    """Return whether a card reports its memory size by now."""
    return not card.info.memory_total_bytes and bool(card.known_memory.total)
