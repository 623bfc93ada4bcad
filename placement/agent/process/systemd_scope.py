"""The properties of the transient systemd unit of a Job at the level ``enforced``.

Pure: ``agent/process/systemd_unit.py`` looks up device files and memory and runs the
command. A scope and not a service, so that the Job stays its shim's child,
with the descriptors and the first pid that it has at every level:
systemd.resource-control(5), systemd.scope(5), systemd-run(1), of systemd 249 or newer
on cgroup v2.

The command line contains no text from a student. systemd-run may replace ``$X`` in its
command, so the command is the portal's own program, which reads the Job's arguments
from standard input.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

SLICE = "gpuportal-jobs.slice"
COMMON_DEVICES = (
    "/dev/nvidiactl",
    "/dev/nvidia-uvm",
    "/dev/nvidia-uvm-tools",
)
"""Devices that CUDA opens besides the cards. They give no access to a closed card."""
MOST_COMMON_RATIO = 0.9
"""Of the memory, if a Job holds all Gpus of a machine. The rest is the node's."""
_DEVICE = re.compile(r"/dev/(nvidia[0-9]{1,4}|nvidia-caps/nvidia-cap[0-9]{1,5})")
_CAPABILITY = re.compile(r"gpu([0-9]+)/gi([0-9]+)(?:/ci([0-9]+))?/access ([0-9]+)")


class UnitInvalid(Exception):
    """No unit can be made: the reason, in words for the Job's page."""


@dataclass(frozen=True, slots=True)
class MigPlace:
    """The place of a MIG instance: its card's minor number, its two instance
    numbers.
    """

    minor: int
    gpu_instance: int
    compute_instance: int


@dataclass(frozen=True, slots=True)
class ScopeLimits:
    """Limits for all processes of a Job together. 0: no limit."""

    memory_bytes: int = 0
    tasks: int = 0


def unit_name(job: int, attempt: int, key: str = "") -> str:
    """Return the scope's name, so that the same attempt cannot run twice.

    >>> unit_name(7, 1)
    'gpuportal-job-7-1.scope'
    """
    own = f"-{key}" if key else ""
    return f"gpuportal-job-{int(job)}-{int(attempt)}{own}.scope"


def scope_command(
    job: int,
    attempt: int,
    *,
    key: str = "",
    program: Sequence[str],
    devices: Sequence[str],
    ceilings: ScopeLimits,
) -> list[str]:
    """Return the command that runs a program in a Job's own scope.

    Args:
        job: the Job, and its attempt.
        attempt: from 1.
        program: the portal's own, with its arguments.
        devices: device files of the reserved Gpus; none: no card at all.
        ceilings: for all of the Job's processes together.

    Raises:
        UnitInvalid: a device that is no Gpu's, or a program that systemd could read as
            something else.
    """
    strange = [path for path in devices if not _DEVICE.fullmatch(path)]
    if strange:
        raise UnitInvalid(f"{strange[0]!r:.60} is no device file of a GPU")
    if not program or not program[0].startswith("/"):
        raise UnitInvalid("the program to run has no whole path")
    if any("$" in word or "\0" in word for word in program):
        raise UnitInvalid("the portal lies in a folder with a $ in its name")
    allowed = [*COMMON_DEVICES, *sorted(set(devices))] if devices else []
    settings = {
        "DevicePolicy": "closed",
        "KillMode": "control-group",
        "TasksMax": str(ceilings.tasks) if ceilings.tasks else "infinity",
        "MemoryMax": str(ceilings.memory_bytes)
        if ceilings.memory_bytes
        else "infinity",
        # A Job that exceeds its memory must not use the node's swap instead.
        "MemorySwapMax": "0",
    }
    words = [f"--property={name}={value}" for name, value in settings.items()]
    words += [f"--property=DeviceAllow={path} rw" for path in allowed]
    return [
        "systemd-run",
        *("--scope", "--quiet", "--collect"),
        f"--unit={unit_name(job, attempt, key)}",
        f"--slice={SLICE}",
        f"--description=GPU Portal: job {int(job)}, attempt {int(attempt)}",
        *words,
        "--",
        *program,
    ]


def kill_command(job: int, attempt: int, key: str = "") -> list[str]:
    """Return the command that kills all processes in a Job's scope."""
    return ["systemctl", "kill", "--signal=SIGKILL", unit_name(job, attempt, key)]


def memory_ceiling_bytes(
    wanted_bytes: int, *, machine_bytes: int, gpus: int, machine_gpus: int
) -> int:
    """Return the memory of a Job: as ordered, or as its share of the machine's Gpus.

    >>> memory_ceiling_bytes(0, machine_bytes=1000, gpus=1, machine_gpus=4)
    225
    """
    share = min(1.0, gpus / machine_gpus) if machine_gpus else 1.0
    most = int(machine_bytes * MOST_COMMON_RATIO * share)
    return min(wanted_bytes, most) if wanted_bytes else most


def device_files(
    uuids: Sequence[str],
    *,
    minors: Mapping[str, int],
    parts: Mapping[str, MigPlace],
    capabilities: str,
) -> tuple[str, ...]:
    """Return the device files of Gpus and MIG instances.

    Args:
        uuids: the reserved Gpus and MIG instances.
        minors: UUID of each whole card of this machine -> number of its /dev/nvidiaN.
        parts: UUID of a reserved MIG instance -> its card and instance numbers.
        capabilities: /proc/driver/nvidia-caps/mig-minors.

    Raises:
        UnitInvalid: this machine lacks one of them, or its device is unknown.
    """
    granted = _capabilities(capabilities)
    found: list[str] = []
    for uuid in uuids:
        place = parts.get(uuid)
        if place is None:
            if uuid not in minors:
                raise UnitInvalid(f"the driver here knows no GPU {uuid:.64}")
            found.append(f"/dev/nvidia{minors[uuid]}")
            continue
        # The card's own file opens nothing of a split card without the instance's two.
        whole = (place.minor, place.gpu_instance, None)
        part = (place.minor, place.gpu_instance, place.compute_instance)
        if whole not in granted or part not in granted:
            raise UnitInvalid(f"the driver tells no device file of instance {uuid:.64}")
        found.append(f"/dev/nvidia{place.minor}")
        found += [f"/dev/nvidia-caps/nvidia-cap{granted[key]}" for key in (whole, part)]
    return tuple(dict.fromkeys(found))


def _capabilities(text: str) -> dict[tuple[int, int, int | None], int]:
    found: dict[tuple[int, int, int | None], int] = {}
    for line in text.splitlines():
        if match := _CAPABILITY.fullmatch(line.strip()):
            gpu, instance, compute, minor = match.groups()
            key = (int(gpu), int(instance), None if compute is None else int(compute))
            found[key] = int(minor)
    return found


def card_of(information: str) -> tuple[str, int] | None:
    """Return UUID and minor of /proc/driver/nvidia/gpus/<bus>/information; None: none.

    >>> card_of("Model: A100\\nGPU UUID: GPU-1\\nDevice Minor: 3\\n")
    ('GPU-1', 3)
    """
    said: dict[str, str] = {}
    for line in information.splitlines():
        name, _, value = line.partition(":")
        said[name.strip()] = value.strip()
    uuid, minor = said.get("GPU UUID", ""), said.get("Device Minor", "")
    return (uuid, int(minor)) if uuid and minor.isdecimal() else None
