"""The NVML calls made for one Gpu each second."""

from __future__ import annotations

from typing import Any, NamedTuple

import pynvml as nvml

from telemetry.agent.probe import old_driver, plausible
from telemetry.agent.probe.nvml_call import OLD_DRIVER, Call, QueriedGpu
from telemetry.protocol import hardware
from telemetry.protocol.hardware import GpuInfo
from telemetry.protocol.sample import MOST_JOULES, Throttle

RACE_TRIES = 3
"""Spare entries: a process list may grow between the call for its size and the call for
the list."""
PROCESS_KINDS = ("Compute", "Graphics", "MPSCompute")


class GpuMemory(NamedTuple):
    """Bytes; None if the card cannot report it."""

    total: int | None = None
    used: int | None = None
    reserved: int | None = None


class Utilization(NamedTuple):
    """Percent of the last sample period; None if the card cannot report it."""

    gpu: int | None = None
    memory: int | None = None


def _process_calls(kind: str) -> list[Call]:
    """The calls for one kind of process, newest first."""
    names = (f"nvmlDeviceGet{kind}RunningProcesses_v{n}" for n in (3, 2))
    return [getattr(nvml, name) for name in names if hasattr(nvml, name)]


_process_lists = {kind: _process_calls(kind) for kind in PROCESS_KINDS}


class NvmlGpu(QueriedGpu):
    """A Gpu known to NVML, and its calls. They raise only GpuLost and DriverGone."""

    __slots__ = (
        *("info", "known_memory", "nvlink", "processes_refused"),
        *("seen_us", "slow", "slow_at"),
    )

    def __init__(self, info: GpuInfo, handle: Any) -> None:
        super().__init__(handle)
        self.info = info
        self.slow: dict[str, Any] = {}
        """The readings that rarely change."""
        self.slow_at = float("-inf")
        self.seen_us = 0
        """Timestamp of the newest process utilization seen (driver's clock,
        microseconds)."""
        self.known_memory = GpuMemory()
        """Memory at the last reading. On a split card its instances report memory."""
        self.processes_refused = False
        """Whether the driver hides the Gpu's processes from this process."""
        self.nvlink: tuple[float, int, int] | None = None
        """Monotonic seconds and bytes sent and received at the last look."""

    def utilization(self) -> Utilization:
        """Return the utilization of its processors and of its memory controller."""
        rates = self.ask(nvml.nvmlDeviceGetUtilizationRates)
        if rates is None:
            return Utilization()
        return Utilization(
            plausible.plausible_integer(rates.gpu, 100),
            plausible.plausible_integer(rates.memory, 100),
        )

    def encoder_pct(self) -> int | None:
        """Return the utilization of its video encoders."""
        return self._codec_pct(nvml.nvmlDeviceGetEncoderUtilization)

    def decoder_pct(self) -> int | None:
        """Return the utilization of its video decoders."""
        return self._codec_pct(nvml.nvmlDeviceGetDecoderUtilization)

    def _codec_pct(self, call: Call) -> int | None:
        answer = self.ask(call)  # percent, and the period in microseconds
        return None if answer is None else plausible.plausible_integer(answer[0], 100)

    def memory(self) -> GpuMemory:
        """Return memory as nvidia-smi shows it, without the driver's reserve if the
        card reports that."""
        try:
            raw = self.ask_strictly(nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlMemory_v2)
            reserved = raw.reserved
        except OLD_DRIVER:
            raw, reserved = self.ask(nvml.nvmlDeviceGetMemoryInfo), None
        except nvml.NVMLError as error:
            self.note(error)
            raw = None
        total = plausible.plausible_integer(
            raw and raw.total, hardware.MOST_MEMORY_BYTES, least=1
        )
        if raw is None or total is None:
            self.known_memory = GpuMemory()
        else:
            used, reserve = (
                plausible.plausible_integer(x, total) for x in (raw.used, reserved)
            )
            self.known_memory = GpuMemory(total, used, reserve)
        return self.known_memory

    def celsius(self) -> int | None:
        """Return the temperature of the chip."""
        value = self.ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
        return plausible.plausible_integer(value, hardware.MOST_CELSIUS, least=1)

    def fan_pct(self) -> int | None:
        """Return the fan speed. A fan above its nominal speed counts as 100 %."""
        value = self.ask(nvml.nvmlDeviceGetFanSpeed)
        most = 150  # "may exceed 100 % in certain cases", NVML API Reference
        speed = plausible.plausible_integer(value, most)
        return None if speed is None else min(speed, 100)

    def watts(self) -> float | None:
        """Return the power drawn."""
        milliwatts = self.ask(nvml.nvmlDeviceGetPowerUsage)
        return plausible.scaled(milliwatts, hardware.MOST_WATTS, per_unit=1000, least=1)

    def energy_and_memory_heat(self) -> tuple[float | None, int | None]:
        """Return the joules since the driver was loaded and the temperature of the
        memory.

        Both come from one call.
        """
        millijoules, celsius = self.ask_fields(
            (nvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, nvml.NVML_FI_DEV_MEMORY_TEMP)
        )
        if millijoules is None:  # a driver that knows the older call only
            millijoules = self.ask(nvml.nvmlDeviceGetTotalEnergyConsumption)
        # Cards without the sensor return 0 with a success code.
        heat = plausible.plausible_integer(celsius, hardware.MOST_CELSIUS, least=1)
        return plausible.scaled(millijoules, MOST_JOULES, per_unit=1000), heat

    def sm_mhz(self) -> int | None:
        """Return the clock of the processors."""
        clock = self.ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM)
        return plausible.plausible_integer(clock, hardware.MOST_MHZ, least=1)

    def memory_mhz(self) -> int | None:
        """Return the clock of the memory."""
        clock = self.ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM)
        return plausible.plausible_integer(clock, hardware.MOST_MHZ, least=1)

    def pstate(self) -> int | None:
        """Return the performance state, 0 to 15. NVML's 32 means "unknown"."""
        return plausible.plausible_integer(
            self.ask(nvml.nvmlDeviceGetPerformanceState), 15
        )

    def throttle(self) -> tuple[Throttle, ...] | None:
        """Return the throttle reasons, by the new or the old name of the call."""
        try:
            bits = self.ask_strictly(nvml.nvmlDeviceGetCurrentClocksEventReasons)
        except OLD_DRIVER:
            bits = self.ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        except nvml.NVMLError as error:
            self.note(error)
            return None
        return plausible.throttle_reasons(bits)

    def process_memory(self) -> dict[int, int | None] | None:
        """Return bytes by pid of all processes on the Gpu; None if it cannot report
        them."""
        found: dict[int, int | None] = {}
        self.processes_refused = False
        for kind in PROCESS_KINDS:
            rows = self._process_list(kind)
            if rows is None and kind == "Compute":
                return None
            for row in rows or ():
                used = plausible.plausible_integer(
                    row.usedGpuMemory, hardware.MOST_MEMORY_BYTES
                )
                known = found.get(row.pid)
                found[row.pid] = used if known is None else max(known, used or 0)
        return found

    def _process_list(self, kind: str) -> list[Any] | None:
        """Return the processes of one kind, by the newest call that this driver has."""
        calls, tries = _process_lists[kind], 0
        while calls and tries < RACE_TRIES:
            call = calls[0]
            try:
                rows: list[Any] = self.ask_strictly(call)
                return rows
            except nvml.NVMLError_InsufficientSize:
                tries += 1
            except OLD_DRIVER:
                _process_lists[kind] = calls = [x for x in calls if x is not call]
            except nvml.NVMLError_NoPermission:
                self.processes_refused = True
                return None
            except nvml.NVMLError as error:
                self.note(error)
                return None
        return None if calls else old_driver.running(kind, self.handle)

    def process_sm_pct(self) -> dict[int, int | None] | None:
        """Return the newest utilization by pid. NotFound means that nothing ran."""
        try:
            rows = self.ask_strictly(nvml.nvmlDeviceGetProcessUtilization, self.seen_us)
        except nvml.NVMLError_NotFound:
            return {}
        except nvml.NVMLError as error:
            self.note(error)
            return None
        rows = sorted(rows, key=lambda row: row.timeStamp)
        self.seen_us = rows[-1].timeStamp if rows else self.seen_us
        return {row.pid: plausible.plausible_integer(row.smUtil, 100) for row in rows}
