"""Facts that rarely change, read once a session or every ten seconds."""

from __future__ import annotations

from typing import Any

import pynvml as nvml

from telemetry.agent import device_files
from telemetry.agent.probe import plausible
from telemetry.agent.probe.gpu_probe import NvmlGpu
from telemetry.agent.probe.nvml_call import name_text
from telemetry.agent.process_owners import printable
from telemetry.protocol import hardware
from telemetry.protocol.hardware import MOST_MINOR, GpuInfo
from telemetry.protocol.sample import MOST_COUNT, MOST_RETIRED_PAGES

_MOST_GEN, _MOST_WIDTH = 10, 64


def describe(index: int, handle: Any) -> GpuInfo:
    """Read what does not change while the driver runs. Raises NVMLError if there is no
    UUID."""
    card = NvmlGpu(GpuInfo("", index, "", "", 0), handle)
    uuid = name_text(nvml.nvmlDeviceGetUUID, handle)
    if not uuid:
        raise nvml.NVMLError(nvml.NVML_ERROR_UNKNOWN)
    name = name_text(nvml.nvmlDeviceGetName, handle) or hardware.UNNAMED
    total_bytes = card.memory().total or 0
    major_minor = card.ask(nvml.nvmlDeviceGetCudaComputeCapability)
    pci = card.ask(nvml.nvmlDeviceGetPciInfo)
    least_watts, most_watts = _limit_range(card)
    return GpuInfo(
        uuid=uuid[: hardware.UUID_LENGTH],
        index=index,
        name=name[: hardware.NAME_LENGTH],
        gpu_class=hardware.gpu_class_of(name, total_bytes),
        memory_total_bytes=total_bytes,
        power_limit_watts=limit_watts(card),
        power_limit_min_watts=least_watts,
        power_limit_max_watts=most_watts,
        slowdown_celsius=_threshold(card, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
        shutdown_celsius=_threshold(card, nvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN),
        sm_clock_max_mhz=_most_mhz(card, nvml.NVML_CLOCK_SM),
        memory_clock_max_mhz=_most_mhz(card, nvml.NVML_CLOCK_MEM),
        pcie_gen_max=plausible.plausible_integer(
            card.ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration), _MOST_GEN, least=1
        ),
        pcie_width_max=plausible.plausible_integer(
            card.ask(nvml.nvmlDeviceGetMaxPcieLinkWidth), _MOST_WIDTH, least=1
        ),
        pci_bus_id=printable(pci.busId)[:32] if pci else "",
        serial=(name_text(nvml.nvmlDeviceGetSerial, handle) or "")[:40],
        compute_capability="{}.{}".format(*major_minor) if major_minor else "",
        mig=bool(split(card)),
        device_numbers=device_files.card_numbers(
            plausible.plausible_integer(
                card.ask(nvml.nvmlDeviceGetMinorNumber), MOST_MINOR
            )
        ),
    )


def readings(card: NvmlGpu) -> dict[str, Any]:
    """Return the fields of a GpuReading that are read every ten seconds."""
    corrected, uncorrected = _ecc_errors(card)
    return {
        "power_limit_watts": limit_watts(card),
        "ecc_corrected": corrected,
        "ecc_uncorrected": uncorrected,
        "pcie_gen": plausible.plausible_integer(
            card.ask(nvml.nvmlDeviceGetCurrPcieLinkGeneration), _MOST_GEN, least=1
        ),
        "pcie_width": plausible.plausible_integer(
            card.ask(nvml.nvmlDeviceGetCurrPcieLinkWidth), _MOST_WIDTH, least=1
        ),
        **_remaps_or_pages(card),
    }


def limit_watts(card: NvmlGpu) -> float | None:
    """Return the power limit in force."""
    milliwatts = card.ask(nvml.nvmlDeviceGetEnforcedPowerLimit)
    return plausible.scaled(milliwatts, hardware.MOST_WATTS, per_unit=1000, least=1)


def split(card: NvmlGpu) -> bool | None:
    """Return whether MIG mode is on; None for a card that cannot be split."""
    mode = card.ask(nvml.nvmlDeviceGetMigMode)
    return None if mode is None else bool(mode[0])


def _limit_range(card: NvmlGpu) -> tuple[float | None, float | None]:
    both = card.ask(nvml.nvmlDeviceGetPowerManagementLimitConstraints)
    if both is None:
        return None, None
    least, most = (
        plausible.scaled(x, hardware.MOST_WATTS, per_unit=1000) for x in both
    )
    return least, most


def _threshold(card: NvmlGpu, kind: int) -> int | None:
    value = card.ask(nvml.nvmlDeviceGetTemperatureThreshold, kind)
    return plausible.plausible_integer(value, hardware.MOST_CELSIUS, least=1)


def _most_mhz(card: NvmlGpu, clock: int) -> int | None:
    value = card.ask(nvml.nvmlDeviceGetMaxClockInfo, clock)
    return plausible.plausible_integer(value, hardware.MOST_MHZ, least=1)


def _ecc_errors(card: NvmlGpu) -> tuple[int | None, int | None]:
    """Return corrected and uncorrected memory errors since boot."""
    corrected, uncorrected = (
        plausible.plausible_integer(
            card.ask(nvml.nvmlDeviceGetTotalEccErrors, kind, nvml.NVML_VOLATILE_ECC),
            MOST_COUNT,
        )
        for kind in (
            nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        )
    )
    return corrected, uncorrected


def _remaps_or_pages(card: NvmlGpu) -> dict[str, Any]:
    """Return remapped rows (Ampere and later) or retired pages (older cards)."""
    rows = card.ask(nvml.nvmlDeviceGetRemappedRows)
    if rows is not None:
        return {
            "row_remap_corrected": plausible.plausible_integer(rows[0], MOST_COUNT),
            "row_remap_uncorrected": plausible.plausible_integer(rows[1], MOST_COUNT),
            "remap_pending": bool(rows[2]),
            "remap_failure": bool(rows[3]),
        }
    # Without ECC no page is ever retired, but some drivers return 0 nevertheless.
    if card.ask(nvml.nvmlDeviceGetEccMode) is None:
        return {}
    single, double, pending = card.ask_fields(
        (
            nvml.NVML_FI_DEV_RETIRED_SBE,
            nvml.NVML_FI_DEV_RETIRED_DBE,
            nvml.NVML_FI_DEV_RETIRED_PENDING,
        )
    )
    known = None not in (single, double)
    return {
        "retired_pages": plausible.plausible_integer(
            single + double, MOST_RETIRED_PAGES
        )
        if known
        else None,
        "retired_pages_pending": None if pending is None else bool(pending),
    }
