"""The device files that a process needs to use a GPU, as pairs (major, minor).

Minor numbers come from the driver and never from the index of a GPU: after a restart,
or with a card that is lost, the two differ. A MIG instance needs the file of its card
and the capability files of its GPU instance and its compute instance (NVIDIA's MIG
user guide, "Device Nodes and Capabilities").
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

NVIDIA_MAJOR = 195
"""``/dev/nvidia<minor>`` (the kernel's ``Documentation/admin-guide/devices.txt``)."""
CAPABILITIES_NAME = "nvidia-caps"
CAPABILITIES = Path("/proc/driver/nvidia/capabilities")
DEVICES = Path("/proc/devices")
DEV = Path("/dev")

Numbers = tuple[tuple[int, int], ...]


def card_numbers(minor: int | None) -> Numbers:
    """Return the device of a whole card; () if the driver does not report its minor."""
    return () if minor is None else ((NVIDIA_MAJOR, minor),)


def instance_numbers(
    minor: int | None,
    gpu_instance: int | None,
    compute_instance: int | None,
    *,
    capabilities: Path = CAPABILITIES,
    devices: Path = DEVICES,
) -> Numbers:
    """Return the devices of a MIG instance of a card; () if any of them is unknown.

    Args:
        minor: minor number of the card.
        gpu_instance, compute_instance: numbers of the instances, as NVML reports them.
    """
    major = capabilities_major(devices)
    if None in (minor, gpu_instance, compute_instance) or major is None:
        return ()
    folder = capabilities / f"gpu{minor}" / "mig" / f"gi{gpu_instance}"
    found = [_capability_minor(folder / "access")]
    found.append(_capability_minor(folder / f"ci{compute_instance}" / "access"))
    if None in found:
        return ()
    own = tuple((major, number) for number in found if number is not None)
    return card_numbers(minor) + own


def capabilities_major(devices: Path = DEVICES) -> int | None:
    """Return the major number of MIG's capability files; None: there are none."""
    try:
        lines = devices.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        number, _, name = line.strip().partition(" ")
        if name == CAPABILITIES_NAME and number.isdecimal():
            return int(number)
    return None


def path_of(major: int, minor: int, dev: Path = DEV) -> Path | None:
    """Return the file of a device below ``/dev``, or None."""
    wanted = os.makedev(major, minor)
    for pattern in ("nvidia*", "nvidia-caps/*", "dri/*", "*"):
        for path in sorted(dev.glob(pattern)):
            try:
                found = path.lstat()
            except OSError:
                continue  # removed this moment
            if stat.S_ISCHR(found.st_mode) and found.st_rdev == wanted:
                return path
    return None


def _capability_minor(path: Path) -> int | None:
    """Read ``DeviceFileMinor: 30`` of a capability; None if it is missing."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, number = line.partition(":")
        if name == "DeviceFileMinor" and number.strip().isdecimal():
            return int(number)
    return None
