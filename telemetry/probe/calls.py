"""Single NVML calls, each made safe: the only file that imports pynvml.

pynvml lets four things through `except NVMLError`: a name with a byte that is
not UTF-8 (UnicodeDecodeError), a driver older than the bindings
(NVMLLibraryMismatchError), a TypeError in nvmlDeviceGetRunningProcessDetailList
(never called here), and garbage numbers (refused by `domain.plausible`).

Everything here answers with plain values; None is "the card cannot say".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, NamedTuple

import pynvml as nvml

from telemetry.domain import hardware, plausible
from telemetry.domain.errors import ProbeUnavailable
from telemetry.domain.hardware import GpuInfo, Link, LinkKind
from telemetry.domain.sample import MOST_COUNT, MOST_JOULES, Throttle
from telemetry.owners import printable
from telemetry.probe import old_driver

RACE_TRIES = 3
"""A process list may grow between the call for its size and the call for it."""

_CANNOT_SAY = frozenset(
    {
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_NOT_FOUND,
        nvml.NVML_ERROR_NO_PERMISSION,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        nvml.NVML_ERROR_INSUFFICIENT_SIZE,
    }
)
"""Answers of a healthy driver; every other error counts against the Gpu."""
_OLD_DRIVER = (nvml.NVMLError_FunctionNotFound, nvml.NVMLLibraryMismatchError)
_WHY_NOT = {
    nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver (libnvidia-ml.so.1) here",
    nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "driver and library versions differ: the driver was updated, restart the node"
    ),
    nvml.NVML_ERROR_NO_PERMISSION: "no permission to talk to the NVIDIA driver",
}

Call = Callable[..., Any]


class GpuLost(Exception):
    """The driver says that the Gpu has fallen off the bus."""


class DriverGone(Exception):
    """The driver was unloaded or reloaded under our feet."""


class Memory(NamedTuple):
    """Bytes; None: the card cannot say."""

    total: int | None = None
    used: int | None = None
    reserved: int | None = None


class Utilization(NamedTuple):
    """Percent of the last sample period; None: the card cannot say."""

    gpu: int | None = None
    memory: int | None = None


def _process_calls(kind: str) -> list[Call]:
    """The calls for one kind of process, newest first."""
    names = (f"nvmlDeviceGet{kind}RunningProcesses_v{n}" for n in (3, 2))
    return [getattr(nvml, name) for name in names if hasattr(nvml, name)]


PROCESS_KINDS = ("Compute", "Graphics", "MPSCompute")
_process_lists = {kind: _process_calls(kind) for kind in PROCESS_KINDS}


@dataclass(slots=True)
class Card:
    """A Gpu that NVML knows, and its calls. `handle` None: not found (any more).

    `ask` and what is built on it raise nothing but GpuLost and DriverGone.
    """

    info: GpuInfo
    handle: Any
    slow_at: float = float("-inf")
    slow: dict[str, Any] = field(default_factory=dict)
    seen_us: int = 0
    """Newest process utilization seen, the driver's clock in microseconds."""
    answered: bool = False
    failed: bool = False

    def ask(self, call: Call, *args: Any) -> Any:
        """One call for this Gpu; None for every way of not answering."""
        try:
            return self._ask_strictly(call, *args)
        except nvml.NVMLError as error:
            self._note(error)
        except (nvml.NVMLLibraryMismatchError, UnicodeDecodeError):
            self.answered = True  # the driver did; the bindings did not like it
        return None

    def _ask_strictly(self, call: Call, *args: Any) -> Any:
        """One call for this Gpu, with the errors that the caller wants to see."""
        try:
            value = call(self.handle, *args)
        except nvml.NVMLError_GpuIsLost:
            raise GpuLost from None
        except nvml.NVMLError_Uninitialized:
            raise DriverGone from None
        self.answered = True
        return value

    def _note(self, error: nvml.NVMLError) -> None:
        """An error that a healthy driver does not give counts against the Gpu."""
        self.failed = self.failed or error.value not in _CANNOT_SAY

    def utilization(self) -> Utilization:
        """How busy its processors and its memory controller were."""
        rates = self.ask(nvml.nvmlDeviceGetUtilizationRates)
        if rates is None:
            return Utilization()
        return Utilization(
            plausible.whole(rates.gpu, 100), plausible.whole(rates.memory, 100)
        )

    def memory(self) -> Memory:
        """Memory as nvidia-smi shows it: the driver's reserve apart, if it can."""
        try:
            raw = self._ask_strictly(nvml.nvmlDeviceGetMemoryInfo, nvml.nvmlMemory_v2)
            reserved = raw.reserved
        except _OLD_DRIVER:
            raw, reserved = self.ask(nvml.nvmlDeviceGetMemoryInfo), None
        except nvml.NVMLError as error:
            self._note(error)
            raw = None
        total = plausible.whole(raw and raw.total, hardware.MOST_MEMORY_BYTES)
        if raw is None or total is None:
            return Memory()
        used, reserve = (plausible.whole(x, total) for x in (raw.used, reserved))
        return Memory(total, used, reserve)

    def celsius(self) -> int | None:
        """Temperature of the chip."""
        value = self.ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
        return plausible.whole(value, hardware.MOST_CELSIUS)

    def slowdown_celsius(self) -> int | None:
        """Temperature at which this model slows itself down."""
        kind = nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
        value = self.ask(nvml.nvmlDeviceGetTemperatureThreshold, kind)
        return plausible.whole(value, hardware.MOST_CELSIUS)

    def watts(self) -> float | None:
        """Power drawn."""
        milliwatts = self.ask(nvml.nvmlDeviceGetPowerUsage)
        return plausible.scaled(milliwatts, hardware.MOST_WATTS, per_unit=1000)

    def limit_watts(self) -> float | None:
        """Power limit in force."""
        milliwatts = self.ask(nvml.nvmlDeviceGetEnforcedPowerLimit)
        return plausible.scaled(milliwatts, hardware.MOST_WATTS, per_unit=1000)

    def joules(self) -> float | None:
        """Energy since the driver was loaded."""
        millijoules = self.ask(nvml.nvmlDeviceGetTotalEnergyConsumption)
        return plausible.scaled(millijoules, MOST_JOULES, per_unit=1000)

    def sm_mhz(self) -> int | None:
        """Clock of the processors."""
        clock = self.ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM)
        return plausible.whole(clock, hardware.MOST_MHZ)

    def sm_most_mhz(self) -> int | None:
        """Highest clock of the processors."""
        clock = self.ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM)
        return plausible.whole(clock, hardware.MOST_MHZ)

    def memory_mhz(self) -> int | None:
        """Clock of the memory."""
        clock = self.ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM)
        return plausible.whole(clock, hardware.MOST_MHZ)

    def pstate(self) -> int | None:
        """Performance state, 0 to 15; NVML says 32 for "unknown"."""
        return plausible.whole(self.ask(nvml.nvmlDeviceGetPerformanceState), 15)

    def throttle(self) -> tuple[Throttle, ...] | None:
        """Throttle reasons, asked under the call's new or its old name."""
        try:
            bits = self._ask_strictly(nvml.nvmlDeviceGetCurrentClocksEventReasons)
        except _OLD_DRIVER:
            bits = self.ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        except nvml.NVMLError as error:
            self._note(error)
            return None
        return plausible.throttle_words(bits)

    def ecc_errors(self) -> tuple[int | None, int | None]:
        """Corrected and uncorrected memory errors since boot."""
        since, most = nvml.NVML_VOLATILE_ECC, MOST_COUNT
        corrected, uncorrected = (
            plausible.whole(
                self.ask(nvml.nvmlDeviceGetTotalEccErrors, kind, since), most
            )
            for kind in (
                nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
                nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            )
        )
        return corrected, uncorrected

    def remaps(self) -> tuple[bool | None, bool | None]:
        """Whether a row remap waits for a reset, and whether one failed."""
        rows = self.ask(nvml.nvmlDeviceGetRemappedRows)
        return (bool(rows[2]), bool(rows[3])) if rows else (None, None)

    def split(self) -> bool | None:
        """Whether MIG mode is on; None for a card that cannot be split."""
        mode = self.ask(nvml.nvmlDeviceGetMigMode)
        return None if mode is None else bool(mode[0])

    def process_memory(self) -> dict[int, int | None] | None:
        """Bytes by pid of all who are on the Gpu; None: it cannot say who is."""
        found: dict[int, int | None] = {}
        for kind in PROCESS_KINDS:
            rows = self._process_list(kind)
            if rows is None and kind == "Compute":
                return None
            for row in rows or ():
                used = plausible.whole(row.usedGpuMemory, hardware.MOST_MEMORY_BYTES)
                known = found.get(row.pid)
                found[row.pid] = used if known is None else max(known, used or 0)
        return found

    def _process_list(self, kind: str) -> list[Any] | None:
        """Processes of one kind, by the newest call that this driver has."""
        calls, tries = _process_lists[kind], 0
        while calls and tries < RACE_TRIES:
            call = calls[0]
            try:
                rows: list[Any] = self._ask_strictly(call)
                return rows
            except nvml.NVMLError_InsufficientSize:
                tries += 1
            except _OLD_DRIVER:
                _process_lists[kind] = calls = [x for x in calls if x is not call]
            except nvml.NVMLError as error:
                self._note(error)
                return None
        return None if calls else old_driver.running(kind, self.handle)

    def process_sm_pct(self) -> dict[int, int | None] | None:
        """Newest utilization by pid. NotFound is "nothing ran", not an error."""
        try:
            rows = self._ask_strictly(
                nvml.nvmlDeviceGetProcessUtilization, self.seen_us
            )
        except nvml.NVMLError_NotFound:
            return {}
        except nvml.NVMLError as error:
            self._note(error)
            return None
        rows = sorted(rows, key=lambda row: row.timeStamp)
        self.seen_us = rows[-1].timeStamp if rows else self.seen_us
        return {row.pid: plausible.whole(row.smUtil, 100) for row in rows}


def start() -> None:
    """Load and start NVML. Raises ProbeUnavailable with one clear line."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise ProbeUnavailable(backend="nvml", why=_why_not(error)) from error


def stop() -> None:
    """Shut NVML down; a driver that is gone has nothing left to shut down."""
    _quiet(nvml.nvmlShutdown)


def find_cards() -> tuple[list[Card], list[int]]:
    """Every Gpu with a handle, MIG instances after their card; lost indices.

    A lost Gpu gives no handle, and without a handle no UUID: only its index is
    known. Raises ProbeUnavailable when the driver does not answer at all.
    """
    cards: list[Card] = []
    unnamed: list[int] = []
    try:
        count = min(nvml.nvmlDeviceGetCount(), hardware.MOST_GPUS)
    except nvml.NVMLError as error:
        raise ProbeUnavailable(backend="nvml", why=_why_not(error)) from error
    for index in range(count):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            card = Card(_describe(index, handle), handle)
        except (nvml.NVMLError, GpuLost, DriverGone):
            unnamed.append(index)
            continue
        cards.append(card)
        for part in instances(card):
            info = replace(_describe(index, part), mig=False, mig_parent=card.info.uuid)
            cards.append(Card(info, part))
    return cards[: hardware.MOST_GPUS], unnamed


def is_back(*, uuid: str = "", index: int = -1) -> bool:
    """Whether a lost Gpu has a handle again, by UUID or by index."""
    if uuid:
        return _quiet(nvml.nvmlDeviceGetHandleByUUID, uuid) is not None
    return _quiet(nvml.nvmlDeviceGetHandleByIndex, index) is not None


def instances(card: Card) -> Iterator[Any]:
    """Handles of a split card's instances."""
    most = _quiet(nvml.nvmlDeviceGetMaxMigDeviceCount, card.handle) or 0
    for number in range(most if card.info.mig else 0):
        part = _quiet(nvml.nvmlDeviceGetMigDeviceHandleByIndex, card.handle, number)
        if part is not None:
            yield part


def instance_uuids(card: Card) -> set[str]:
    """UUIDs of a split card's instances, as they are now."""
    return {uuid for x in instances(card) if (uuid := _text(nvml.nvmlDeviceGetUUID, x))}


def fast_links(cards: Iterable[Card]) -> Iterator[Link]:
    """Pairs of whole Gpus that reach each other over NVLink or NVSwitch."""
    call, kind = nvml.nvmlDeviceGetP2PStatus, nvml.NVML_P2P_CAPS_INDEX_NVLINK
    whole = [x for x in cards if x.handle is not None and not x.info.mig_parent]
    for a, b in combinations(whole, 2):
        if _quiet(call, a.handle, b.handle, kind) == nvml.NVML_P2P_STATUS_OK:
            yield Link(a.info.uuid, b.info.uuid, LinkKind.NVLINK)


def driver_version() -> str:
    """Such as 570.124.06; "" where it cannot be told."""
    return (_text(nvml.nvmlSystemGetDriverVersion) or "")[:40]


def cuda_version() -> str:
    """Newest CUDA the driver serves: 12080 is 12.8."""
    number = _quiet(nvml.nvmlSystemGetCudaDriverVersion_v2)
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def _describe(index: int, handle: Any) -> GpuInfo:
    """What does not change while the driver runs."""
    card = Card(GpuInfo("", index, "", "", 0), handle)
    uuid = _text(nvml.nvmlDeviceGetUUID, handle)
    if not uuid:
        raise nvml.NVMLError(nvml.NVML_ERROR_UNKNOWN)
    name = _text(nvml.nvmlDeviceGetName, handle) or "unnamed"
    total_bytes = card.memory().total or 0
    major_minor = card.ask(nvml.nvmlDeviceGetCudaComputeCapability)
    pci = card.ask(nvml.nvmlDeviceGetPciInfo)
    return GpuInfo(
        uuid=uuid[: hardware.UUID_LENGTH],
        index=index,
        name=name[: hardware.NAME_LENGTH],
        gpu_class=hardware.gpu_class_of(name, total_bytes),
        memory_total_bytes=total_bytes,
        power_limit_watts=card.limit_watts(),
        slowdown_celsius=card.slowdown_celsius(),
        sm_clock_max_mhz=card.sm_most_mhz(),
        pci_bus_id=printable(pci.busId)[:32] if pci else "",
        serial=(_text(nvml.nvmlDeviceGetSerial, handle) or "")[:40],
        compute_capability="{}.{}".format(*major_minor) if major_minor else "",
        mig=bool(card.split()),
    )


def _text(call: Any, *args: Any) -> str | None:
    """A name as the driver gives it: a byte that is not UTF-8 shows as \\xe9."""
    raw = _quiet(call.__wrapped__, *args)  # pynvml's decorator decodes strictly
    return None if raw is None else printable(raw.decode("utf-8", "backslashreplace"))


def _quiet(call: Call, *args: Any) -> Any:
    """The call's value, or None where the driver or the bindings cannot say."""
    try:
        return call(*args)
    except (nvml.NVMLError, nvml.NVMLLibraryMismatchError):
        return None


def _why_not(error: nvml.NVMLError) -> str:
    return _WHY_NOT.get(error.value, f"the NVIDIA driver does not answer ({error})")
