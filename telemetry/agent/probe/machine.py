"""The whole machine: start NVML, find the Gpus and their connections."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import combinations
from typing import Any

import pynvml as nvml
from msgspec.structs import replace

from telemetry.agent import device_files
from telemetry.agent.probe.gpu_probe import NvmlGpu
from telemetry.agent.probe.nvml_call import DriverGone, GpuLost, name_text, quiet
from telemetry.agent.probe.slow_facts import describe
from telemetry.protocol import hardware
from telemetry.protocol.errors import ProbeUnavailable
from telemetry.protocol.hardware import Link, LinkKind

DESCRIBED_AT_ONCE = 8
_WHY_NOT = {
    nvml.NVML_ERROR_LIBRARY_NOT_FOUND: "no NVIDIA driver (libnvidia-ml.so.1) here",
    nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the NVIDIA driver is not loaded",
    nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "driver and library versions differ: the driver was updated, restart the node"
    ),
    nvml.NVML_ERROR_NO_PERMISSION: "no permission to talk to the NVIDIA driver",
}
_DISTANCE = {
    nvml.NVML_TOPOLOGY_INTERNAL: LinkKind.PIX,
    nvml.NVML_TOPOLOGY_SINGLE: LinkKind.PIX,
    nvml.NVML_TOPOLOGY_MULTIPLE: LinkKind.PXB,
    nvml.NVML_TOPOLOGY_HOSTBRIDGE: LinkKind.PHB,
    nvml.NVML_TOPOLOGY_NODE: LinkKind.NODE,
    nvml.NVML_TOPOLOGY_SYSTEM: LinkKind.SYS,
}
"""nvmlGpuTopologyLevel_t; two chips of one board are one bridge apart."""


def start() -> None:
    """Load and start NVML. Raises ProbeUnavailable with one clear line."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise ProbeUnavailable(backend="nvml", why=_why_not(error)) from error


def stop() -> None:
    """Shut NVML down. Errors of a driver that is gone are ignored."""
    quiet(nvml.nvmlShutdown)


def find_cards() -> tuple[list[NvmlGpu], list[int]]:
    """Return every Gpu with a handle, MIG instances after their card, and the lost
    indices.

    A lost Gpu has no handle and therefore no UUID. Only its index is known. Raises
    ProbeUnavailable if the driver does not answer at all.
    """
    try:
        count = min(nvml.nvmlDeviceGetCount(), hardware.MOST_GPUS)
    except nvml.NVMLError as error:
        raise ProbeUnavailable(backend="nvml", why=_why_not(error)) from error
    found = _side_by_side(_cards_at, range(count))
    cards = [card for cards in found for card in cards or ()]
    unnamed = [index for index, cards in enumerate(found) if cards is None]
    return cards[: hardware.MOST_GPUS], unnamed


def _cards_at(index: int) -> list[NvmlGpu] | None:
    """Return the card of an index and its MIG instances; None if it is lost."""
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        found = [NvmlGpu(describe(index, handle), handle)]
        parent = found[0].info
        for part in instances(found[0]):
            number = quiet(nvml.nvmlDeviceGetGpuInstanceId, part)
            info = replace(
                describe(index, part),
                mig=False,
                mig_parent=parent.uuid,
                mig_instance=number,
                device_numbers=device_files.instance_numbers(
                    parent.device_numbers[0][1] if parent.device_numbers else None,
                    number,
                    quiet(nvml.nvmlDeviceGetComputeInstanceId, part),
                ),
            )
            found.append(NvmlGpu(info, part))
    except (nvml.NVMLError, GpuLost, DriverGone):
        return None
    return found


def _side_by_side(
    call: Callable[[int], list[NvmlGpu] | None], indices: Sequence[int]
) -> list[list[NvmlGpu] | None]:
    """Query several cards at once, because on a slow bus each takes seconds.

    The threads are daemons. A pool would wait at its end for a card that hangs.
    """
    found: dict[int, list[NvmlGpu] | None] = {}
    waiting = deque(indices)
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while waiting:
                try:
                    index = waiting.popleft()
                except IndexError:
                    return
                found[index] = call(index)
        except BaseException as error:  # raised again by the caller below
            errors.append(error)

    threads = [
        threading.Thread(target=work, name="describe", daemon=True)
        for _ in range(min(DESCRIBED_AT_ONCE, len(indices)) - 1)
    ]
    for thread in threads:
        thread.start()
    work()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return [found[index] for index in indices]


def count() -> int | None:
    """Return how many Gpus the driver lists now; None if it does not answer."""
    number: int | None = quiet(nvml.nvmlDeviceGetCount)
    return number


def is_back(*, uuid: str = "", index: int = -1) -> bool:
    """Whether a lost Gpu has a handle again, by UUID or by index."""
    if uuid:
        return quiet(nvml.nvmlDeviceGetHandleByUUID, uuid) is not None
    return quiet(nvml.nvmlDeviceGetHandleByIndex, index) is not None


def instances(card: NvmlGpu) -> Iterator[Any]:
    """Yield the handles of a split card's instances."""
    most = quiet(nvml.nvmlDeviceGetMaxMigDeviceCount, card.handle) or 0
    for number in range(most if card.info.mig else 0):
        part = quiet(nvml.nvmlDeviceGetMigDeviceHandleByIndex, card.handle, number)
        if part is not None:
            yield part


def instance_uuids(card: NvmlGpu) -> set[str]:
    """Return the current UUIDs of a split card's instances."""
    return {
        uuid for x in instances(card) if (uuid := name_text(nvml.nvmlDeviceGetUUID, x))
    }


def links(cards: Iterable[NvmlGpu]) -> Iterator[Link | None]:
    """Yield the link of each pair of whole Gpus.

    Yields None after a call that shows nothing about the pair, so that the caller sees
    that the driver answers.
    """
    whole = [x for x in cards if x.handle is not None and not x.info.mig_parent]
    wired = set()
    for card in whole:
        if _has_nvlink(card):
            wired.add(card.info.uuid)
        yield None
    for a, b in combinations(whole, 2):
        pair = a.info.uuid, b.info.uuid
        kind = LinkKind.NVLINK if wired.issuperset(pair) and _joined(a, b) else None
        kind = kind or _distance(a, b)
        yield None if kind is None else Link(*pair, kind)


def _has_nvlink(card: NvmlGpu) -> bool:
    return quiet(nvml.nvmlDeviceGetNvLinkState, card.handle, 0) is not None


def _joined(a: NvmlGpu, b: NvmlGpu) -> bool:
    """Return whether two Gpus reach each other over NVLink or NVSwitch."""
    call, kind = nvml.nvmlDeviceGetP2PStatus, nvml.NVML_P2P_CAPS_INDEX_NVLINK
    status: int | None = quiet(call, a.handle, b.handle, kind)
    return status == nvml.NVML_P2P_STATUS_OK


def _distance(a: NvmlGpu, b: NvmlGpu) -> LinkKind | None:
    level = quiet(nvml.nvmlDeviceGetTopologyCommonAncestor, a.handle, b.handle)
    return _DISTANCE.get(level)


def driver_version() -> str:
    """Return the driver's version, such as 570.124.06; "" if unknown."""
    return (name_text(nvml.nvmlSystemGetDriverVersion) or "")[:40]


def cuda_version() -> str:
    """Return the newest CUDA version that the driver supports: 12080 is 12.8."""
    number = quiet(nvml.nvmlSystemGetCudaDriverVersion_v2)
    return f"{number // 1000}.{number % 1000 // 10}" if number else ""


def _why_not(error: nvml.NVMLError) -> str:
    return _WHY_NOT.get(error.value, f"the NVIDIA driver does not answer ({error})")
