"""The probe that reads real Gpus, through the driver's own library.

Runs in the sampling child. A Gpu that cannot be read never takes the others
along: what it cannot say is None, and a lost one stays in the list as lost.
Handles are kept and belong to UUIDs, never to indices; after a driver reload
they are worthless, and `mend` starts anew and finds the Gpus by UUID.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from telemetry.domain.errors import ProbeUnavailable
from telemetry.domain.hardware import (
    MOST_MEMORY_BYTES,
    Backend,
    Isolation,
    NodeInfo,
)
from telemetry.domain.reload import ReloadWatch
from telemetry.domain.sample import (
    MOST_PID,
    GpuReading,
    Health,
    NodeSample,
    ProcessReading,
    largest,
)
from telemetry.owners import Owners, boot_id
from telemetry.probe import calls
from telemetry.probe.calls import Card, DriverGone, GpuLost

SLOW_EVERY_SECONDS = 10.0
"""ECC, row remaps and limits hardly change; each costs a call."""


class NvmlProbe:
    """Reads the Gpus of this machine through NVML.

    `read_gpu` may be called for different Gpus from different threads; all
    else belongs to one thread.
    """

    backend = Backend.NVML

    def __init__(
        self,
        node: str,
        *,
        node_dir: Path | None = None,
        isolation: Isolation = Isolation.NONE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._owners = Owners(node_dir)
        self._isolation = isolation
        self._clock = clock
        self._cards: dict[str, Card] = {}
        self._unnamed: list[int] = []
        self._info = NodeInfo(node=node, backend=self.backend, gpus=())
        self._running = False
        self._watch = ReloadWatch()
        self._seq = 0

    @property
    def info(self) -> NodeInfo:
        """The roster; another object whenever it changed."""
        return self._info

    @property
    def uuids(self) -> tuple[str, ...]:
        """Every Gpu known since the start, the lost ones too."""
        return tuple(self._cards)

    @property
    def stale(self) -> bool:
        """Whether the driver seems to have been reloaded (see `mend`)."""
        return self._watch.stale

    def open(self) -> NodeInfo:
        """Start NVML and list the Gpus. Raises ProbeUnavailable, one clear line."""
        calls.start()
        self._running = True
        cards, self._unnamed = calls.find_cards()
        if not cards and not self._cards:
            self.close()
            lost = f"all {len(self._unnamed)} GPUs are lost" if self._unnamed else ""
            why = lost or "there is a driver but no GPU"
            raise ProbeUnavailable(backend="nvml", why=why)
        found = {card.info.uuid: card for card in cards}
        for uuid, gone in self._cards.items():
            found.setdefault(uuid, Card(replace(gone.info, lost=True), handle=None))
        self._cards = found
        self._watch.note_success()
        self._info = NodeInfo(
            node=self._node,
            backend=self.backend,
            gpus=tuple(card.info for card in found.values()),
            links=tuple(calls.fast_links(found.values())),
            driver_version=calls.driver_version(),
            cuda_version=calls.cuda_version(),
            boot_id=boot_id(),
            isolation=self._isolation,
        )
        return self._info

    def close(self) -> None:
        """Let go of the driver; safe to call twice."""
        if self._running:
            self._running = False
            calls.stop()

    def mend(self) -> None:
        """After a reload: start anew, if the back-off allows it now.

        Raises ProbeUnavailable while the driver is away; call again next second.
        """
        now = self._clock()
        if self._watch.due(now):
            self._watch.note_try(now)
            self.close()
            self.open()

    def begin(self, at: float) -> None:
        """Once before the Gpus of a Sample are read. `at`: Unix seconds."""
        del at  # the driver knows only the present
        self._owners.refresh(self._clock())
        self._watch.judge({x for x, card in self._cards.items() if card.handle})

    def read(self, at: float) -> NodeSample:
        """One Sample of all Gpus, one after the other. `at`: Unix seconds."""
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

    def read_gpu(self, uuid: str) -> GpuReading:
        """One Gpu, now. Never raises: what cannot be read is None."""
        card = self._cards[uuid]
        card.answered = card.failed = False
        try:
            self._read_slow(card)
            reading = self._read_fast(card) if card.handle is not None else None
        except GpuLost:
            reading = None
        except DriverGone:
            self._watch.note_proof()
            return GpuReading(uuid=uuid, state=Health.ERROR)
        if reading is None:
            return GpuReading(uuid=uuid, state=Health.LOST)
        silent = card.failed and not card.answered
        self._watch.note(uuid, answered=not silent)
        return GpuReading(uuid=uuid, state=Health.ERROR) if silent else reading

    def _read_slow(self, card: Card) -> None:
        """Every 10 s: what hardly changes, and whether a lost Gpu is back."""
        now = self._clock()
        if now - card.slow_at < SLOW_EVERY_SECONDS:
            return
        # Neighbours ask in different seconds, so that no Sample costs much more.
        early = card.info.index % SLOW_EVERY_SECONDS if card.slow_at < 0 else 0
        card.slow_at = now - early
        if card.handle is None:
            if calls.is_back(uuid=card.info.uuid):
                self._watch.note_proof()
            return
        nameless_is_back = any(calls.is_back(index=x) for x in self._unnamed)
        if nameless_is_back or self._split_otherwise(card):
            self._watch.note_proof()
        corrected, uncorrected = card.ecc_errors()
        remap_pending, remap_failure = card.remaps()
        card.slow = {
            "power_limit_watts": card.limit_watts(),
            "ecc_corrected": corrected,
            "ecc_uncorrected": uncorrected,
            "remap_pending": remap_pending,
            "remap_failure": remap_failure,
        }

    def _split_otherwise(self, card: Card) -> bool:
        """Whether somebody changed the card's MIG instances since the roster."""
        split = None if card.info.mig_parent else card.split()
        if split is None or split != card.info.mig:
            return split is not None
        parts = (x.info for x in self._cards.values() if x.handle is not None)
        known = {x.uuid for x in parts if x.mig_parent == card.info.uuid}
        return known != calls.instance_uuids(card)

    def _read_fast(self, card: Card) -> GpuReading:
        utilization, memory = card.utilization(), card.memory()
        return GpuReading(
            uuid=card.info.uuid,
            util_pct=utilization.gpu,
            memory_util_pct=utilization.memory,
            memory_used_bytes=memory.used,
            memory_reserved_bytes=memory.reserved,
            memory_total_bytes=memory.total,
            temperature_celsius=card.celsius(),
            power_watts=card.watts(),
            sm_clock_mhz=card.sm_mhz(),
            memory_clock_mhz=card.memory_mhz(),
            pstate=card.pstate(),
            throttle=card.throttle(),
            energy_joules=card.joules(),
            # A split card's processes are told by its instances.
            processes=None if card.info.mig else self._processes(card, memory.total),
            **card.slow,
        )

    def _processes(
        self, card: Card, total_bytes: int | None
    ) -> tuple[ProcessReading, ...] | None:
        """Everybody on the Gpu; None when the driver cannot say who is there."""
        found = card.process_memory()
        if found is None:
            return None
        sm_pct = card.process_sm_pct() if found else {}
        readings = []
        for pid, memory_bytes in found.items():
            if not 0 < pid <= MOST_PID:
                continue
            owner = self._owners.owner(pid)
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
