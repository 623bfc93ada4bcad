"""Data rates of a Gpu's links. They are read only while a page of the Gpu is open.

A PCIe rate is counted over 20 ms, during which the call does not return (NVML
API Reference, nvmlDeviceGetPcieThroughput); NVLink has counters.
"""

from __future__ import annotations

from typing import Any

import pynvml as nvml

from telemetry.agent.probe import plausible
from telemetry.agent.probe.gpu_probe import NvmlGpu
from telemetry.protocol.sample import MOST_BYTES_PER_SECOND
from telemetry.protocol.units import KIB_BYTES

ALL_LINKS = 0xFFFFFFFF
"""Scope of a field value: the sum over all links."""


def link_rates(card: NvmlGpu, now: float) -> dict[str, Any]:
    """Return the rates of PCIe and NVLink in bytes per second. `now`: monotonic
    seconds.
    """
    sent, received = (
        card.ask(nvml.nvmlDeviceGetPcieThroughput, direction)
        for direction in (nvml.NVML_PCIE_UTIL_TX_BYTES, nvml.NVML_PCIE_UTIL_RX_BYTES)
    )
    nvlink_tx, nvlink_rx = _nvlink(card, now)
    return {
        "pcie_tx_bytes_per_second": _pcie(sent),
        "pcie_rx_bytes_per_second": _pcie(received),
        "nvlink_tx_bytes_per_second": nvlink_tx,
        "nvlink_rx_bytes_per_second": nvlink_rx,
    }


def _pcie(kib_per_second: int | None) -> int | None:
    if kib_per_second is None:
        return None
    return plausible.plausible_integer(
        kib_per_second * KIB_BYTES, MOST_BYTES_PER_SECOND
    )


def _nvlink(card: NvmlGpu, now: float) -> tuple[int | None, int | None]:
    """Return the difference of the counters since the last reading; None the first
    time."""
    counters = card.ask_fields(
        (
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ALL_LINKS),
            (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ALL_LINKS),
        )
    )
    before, card.nvlink = card.nvlink, None
    if None in counters:
        return None, None
    tx_bytes, rx_bytes = (value * KIB_BYTES for value in counters)
    card.nvlink = (now, tx_bytes, rx_bytes)
    if before is None or now <= before[0]:
        return None, None
    seconds = now - before[0]
    # A counter that was reset goes backwards. `plausible` rejects the difference.
    tx, rx = (
        round((new - old) / seconds)
        for new, old in ((tx_bytes, before[1]), (rx_bytes, before[2]))
    )
    most = MOST_BYTES_PER_SECOND
    return plausible.plausible_integer(tx, most), plausible.plausible_integer(rx, most)
