"""One call of NVML, made safe.

pynvml lets four things through `except NVMLError`: a name with a byte that is
not UTF-8 (UnicodeDecodeError), a driver older than the bindings
(NVMLLibraryMismatchError), a TypeError in nvmlDeviceGetRunningProcessDetailList
(never called here), and garbage numbers (refused by `agent.probe.plausible`).

All functions here return plain values. None means that the card cannot report the
value.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pynvml as nvml

from telemetry.agent.process_owners import printable

CANNOT_SAY = frozenset(
    {
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_NOT_FOUND,
        nvml.NVML_ERROR_NO_PERMISSION,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        nvml.NVML_ERROR_INSUFFICIENT_SIZE,
    }
)
"""Errors that a healthy driver may return. Every other error counts against the Gpu."""
OLD_DRIVER = (nvml.NVMLError_FunctionNotFound, nvml.NVMLLibraryMismatchError)

Call = Callable[..., Any]

_MEMBER = {
    nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    nvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
}


class GpuLost(Exception):
    """The driver reports that the Gpu has fallen off the bus."""


class DriverGone(Exception):
    """The driver was unloaded or reloaded while this process used it."""


class QueriedGpu:
    """A Gpu's handle and the results of its calls. `handle` None: not found (any more).

    `ask` and the methods that use it raise only GpuLost and DriverGone.
    """

    __slots__ = ("answered", "answered_at", "failed", "handle", "mute")

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.answered = False
        """Whether any call succeeded since this was last cleared."""
        self.answered_at = float("-inf")
        """When the driver last returned from a call, with any result (monotonic
        seconds). This tells a slow bus from a driver that hangs."""
        self.failed = False
        self.mute: set[Call] = set()
        """Calls that the card does not support. They are skipped until this is
        cleared."""

    def ask(self, call: Call, *args: Any) -> Any:
        """Make one call for this Gpu. Returns None if there is no answer for any
        reason."""
        if call in self.mute:
            return None
        try:
            return self.ask_strictly(call, *args)
        except nvml.NVMLError as error:
            self.note(error)
            if not args and error.value == nvml.NVML_ERROR_NOT_SUPPORTED:
                self.mute.add(call)
        except (nvml.NVMLLibraryMismatchError, UnicodeDecodeError):
            self.answered = True  # the bindings rejected the answer
        return None

    def ask_strictly(self, call: Call, *args: Any) -> Any:
        """Make one call for this Gpu. Raises the errors that the caller handles
        itself."""
        try:
            value = call(self.handle, *args)
        except nvml.NVMLError_GpuIsLost:
            raise GpuLost from None
        except nvml.NVMLError_Uninitialized:
            raise DriverGone from None
        finally:
            self.answered_at = time.monotonic()
        self.answered = True
        return value

    def note(self, error: nvml.NVMLError) -> None:
        """Count an error against the Gpu if a healthy driver does not return it."""
        self.failed = self.failed or error.value not in CANNOT_SAY

    def ask_fields(self, wanted: Sequence[Any]) -> list[Any]:
        """Return several field values by one call; None for each that is missing."""
        values = self.ask(nvml.nvmlDeviceGetFieldValues, wanted)
        if values is None:
            return [None] * len(wanted)
        return [_field(value) for value in values]


def _field(value: Any) -> Any:
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        return None
    member = _MEMBER.get(value.valueType)
    return None if member is None else getattr(value.value, member)


def name_text(call: Any, *args: Any) -> str | None:
    """A name as the driver gives it: a byte that is not UTF-8 shows as \\xe9."""
    raw = quiet(call.__wrapped__, *args)  # pynvml's decorator decodes strictly
    return None if raw is None else printable(raw.decode("utf-8", "backslashreplace"))


def quiet(call: Call, *args: Any) -> Any:
    """Return the call's value; None if the driver or the bindings have none."""
    try:
        return call(*args)
    except (nvml.NVMLError, nvml.NVMLLibraryMismatchError):
        return None
