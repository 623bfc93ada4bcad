"""A machine without GPUs. It has a roster all the same, and no driver to report."""

from __future__ import annotations

import time

from telemetry import paths
from telemetry.agent.optional_packages import installed
from telemetry.agent.process_owners import boot_id
from telemetry.protocol.hardware import Backend, Isolation, NodeInfo, NotIsolated
from telemetry.protocol.sample import GpuReading, NodeSample, XidEvent


class NoGpuProbe:
    """The interface of NvmlProbe for a machine that only submits jobs to Slurm."""

    backend = Backend.NONE
    uuids: tuple[str, ...] = ()
    unnamed: tuple[int, ...] = ()
    refused = ""
    stale = urgent = stuck = False

    def __init__(
        self, node: str, *, isolation: Isolation, not_isolated: NotIsolated
    ) -> None:
        self.info = NodeInfo(
            node=node,
            backend=self.backend,
            gpus=(),
            boot_id=boot_id(),
            isolation=isolation,
            not_isolated=not_isolated,
            extras=installed(),
            release=paths.release(),
        )

    def open(self) -> NodeInfo:
        """Return the roster."""
        return self.info

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def reopen(self) -> None:
        """Do nothing: there is no driver."""

    def watch(self, uuids: frozenset[str]) -> None:
        """Do nothing: there are no Gpus."""

    def take_xids(self, uuid: str) -> tuple[XidEvent, ...]:
        """Return no events: there is no driver."""
        return ()

    def begin(self, at: float) -> None:
        """Do nothing: there is nothing to read."""

    def read(self, at: float) -> NodeSample:
        """Return a Sample without Gpus. `at`: Unix seconds."""
        return NodeSample(node=self.info.node, at=at, gpus=())

    def answered_at(self, uuid: str) -> float:
        """Return now."""
        return time.monotonic()

    def read_gpu(self, uuid: str) -> GpuReading:
        """Raise KeyError: there are no Gpus."""
        raise KeyError(uuid)
