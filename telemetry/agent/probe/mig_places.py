"""Find MIG instances: `python -m telemetry.agent.probe.mig_places UUID...`.

Runs as a separate process, so that a driver that hangs does not hang the caller. Prints
one JSON object: UUID -> [minor number of its card, GPU instance, compute instance].
Instances that the driver does not know are left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

import pynvml as nvml

from telemetry.agent.probe.nvml_call import quiet


def places(uuids: Iterable[str]) -> dict[str, tuple[int, int, int]]:
    """Return the place of each instance, from the driver."""
    found: dict[str, tuple[int, int, int]] = {}
    for uuid in uuids:
        handle = quiet(nvml.nvmlDeviceGetHandleByUUID, uuid)
        if handle is None:
            continue
        card = quiet(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
        if card is None:
            continue
        minor = quiet(nvml.nvmlDeviceGetMinorNumber, card)
        instance = quiet(nvml.nvmlDeviceGetGpuInstanceId, handle)
        compute = quiet(nvml.nvmlDeviceGetComputeInstanceId, handle)
        if minor is not None and instance is not None and compute is not None:
            found[uuid] = (int(minor), int(instance), int(compute))
    return found


def main(uuids: list[str]) -> int:
    """Print the answer. Returns 1 if no driver answers."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        sys.stderr.write(f"the NVIDIA driver does not answer: {error}\n")
        return 1
    print(json.dumps(places(uuids)))
    quiet(nvml.nvmlShutdown)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
