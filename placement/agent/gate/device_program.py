"""The BPF program of the device gate, of type ``BPF_PROG_TYPE_CGROUP_DEVICE``.

The kernel runs it each time a process opens or makes a device file, and refuses with
EPERM if the program returns 0. The program decides in this order:

1. Allow everything except opening a character device for reading or writing.
2. Allow devices of other majors, and control devices such as ``/dev/nvidiactl``.
3. Allow uids below ``LOWEST_UID``: root and system accounts.
4. Allow if the map of grants has ``(uid, device)`` with an end in the future, on the
   clock that also counts while the machine is suspended (``CLOCK_BOOTTIME``).
5. Count everything else for its uid, and refuse it (``gated``) or allow it (``watch``).

The uid is the process's real one, in the machine's own user namespace. A process of
root that lends its rights to a student's program is therefore judged as the student.

Numbers come from the kernel's ``include/uapi/linux/bpf.h``; those of devices from
``Documentation/admin-guide/devices.txt`` and NVIDIA's driver.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import dataclass

from placement.agent.gate.bpf_instructions import (
    ADD,
    AND,
    BELOW,
    DOUBLE_WORD,
    EQUAL,
    NOT_EQUAL,
    OR,
    SHIFT_LEFT,
    SHIFT_RIGHT,
    Assembly,
    Register,
)
from placement.protocol.process_commands import LOWEST_UID
from telemetry.agent.device_files import NVIDIA_MAJOR

MAP_LOOKUP = 1
MAP_UPDATE = 2
CURRENT_UID_GID = 15
BOOT_NANOSECONDS = 125
"""Helpers (``enum bpf_func_id``). The last one exists since kernel 5.8."""
ONLY_IF_NEW = 1
"""``BPF_NOEXIST``."""

CHARACTER_DEVICE = 2
"""``BPF_DEVCG_DEV_CHAR``, the low 16 bits of the context's first word."""
READ_OR_WRITE = 2 | 4
"""``BPF_DEVCG_ACC_READ`` and ``BPF_DEVCG_ACC_WRITE``, in the high 16 bits."""
CONTEXT = struct.Struct("<III")
"""``struct bpf_cgroup_dev_ctx``: access and type, major, minor."""

MINOR_BITS = 20
"""``MINORBITS`` of the kernel's ``include/linux/kdev_t.h``."""
GRANT_KEY = struct.Struct("<II")
"""Uid, device number."""
GRANT_END = struct.Struct("<Q")
"""Nanoseconds of ``CLOCK_BOOTTIME`` at which the grant ends."""
REFUSAL_KEY = struct.Struct("<I")
"""Uid."""
REFUSAL_COUNT = struct.Struct("<Q")

NVIDIA_CONTROL_MINORS = frozenset({254, 255})
"""``/dev/nvidia-modeset`` and ``/dev/nvidiactl``."""
MIG_CONTROL_MINORS = frozenset({1, 2})
"""``mig/config``, which only root may open, and ``mig/monitor`` (NVIDIA's MIG user
guide, "Device nodes")."""


@dataclass(frozen=True, slots=True)
class GatedMajor:
    """The devices of one major number that the gate judges."""

    major: int
    open_minors: frozenset[int] = frozenset()
    """Control devices, which everybody may open."""
    only_minors: frozenset[int] | None = None
    """The only devices that are judged; None: all but the control devices. Other
    devices share the major number of AMD's render nodes."""


def gated_majors(
    numbers: Collection[tuple[int, int]], capabilities_major: int | None
) -> tuple[GatedMajor, ...]:
    """Return what the gate judges on a machine with these devices of GPUs.

    All cards of NVIDIA's major number are judged, those that no GPU is known for too.
    """
    found = []
    for major in sorted({major for major, _ in numbers}):
        if major == NVIDIA_MAJOR:
            found.append(GatedMajor(major, NVIDIA_CONTROL_MINORS))
        elif major == capabilities_major:
            found.append(GatedMajor(major, MIG_CONTROL_MINORS))
        else:
            own = frozenset(minor for other, minor in numbers if other == major)
            found.append(GatedMajor(major, only_minors=own))
    return tuple(found)


def device_number(major: int, minor: int) -> int:
    """Return the kernel's number of a device.

    >>> device_number(195, 3) == 195 << 20 | 3
    True
    """
    return major << MINOR_BITS | minor


def device_program(
    majors: tuple[GatedMajor, ...],
    *,
    grants: int,
    refusals: int,
    refuse: bool,
    lowest_uid: int = LOWEST_UID,
) -> bytes:
    """Return the program.

    Args:
        majors: the devices that it judges.
        grants: descriptor of the map from ``GRANT_KEY`` to ``GRANT_END``.
        refusals: descriptor of the map from ``REFUSAL_KEY`` to ``REFUSAL_COUNT``.
        refuse: False: an opening without a grant is counted and allowed.
        lowest_uid: uids below it are always allowed.

    Raises:
        ValueError: there is no major number, or the same one twice.
    """
    if not majors or len({one.major for one in majors}) != len(majors):
        raise ValueError("the gate needs major numbers, each of them once")
    code = Assembly()
    _judge_only_devices(code, majors)
    code.label("judge")
    code.call(CURRENT_UID_GID)
    code.move_low_word(Register.R9, Register.R0)
    code.go_if(BELOW, Register.R9, lowest_uid, "allow")
    _look_for_grant(code, grants)
    code.label("count")
    _count_refusal(code, refusals)
    code.label("refuse")
    code.set(Register.R0, 0 if refuse else 1)
    code.leave()
    code.label("allow")
    code.set(Register.R0, 1)
    code.leave()
    return code.encode()


def _judge_only_devices(code: Assembly, majors: tuple[GatedMajor, ...]) -> None:
    """Allow everything but opening a gated device; r7: its major, r8: its minor."""
    code.move(Register.R6, Register.R1)
    code.load(Register.R1, Register.R6, 0)
    code.move(Register.R2, Register.R1)
    code.compute(AND, Register.R2, 0xFFFF)
    code.go_if(NOT_EQUAL, Register.R2, CHARACTER_DEVICE, "allow")
    code.compute(SHIFT_RIGHT, Register.R1, 16)
    code.compute(AND, Register.R1, READ_OR_WRITE)
    code.go_if(EQUAL, Register.R1, 0, "allow")
    code.load(Register.R7, Register.R6, 4)
    code.load(Register.R8, Register.R6, 8)
    for one in majors:
        other = f"not {one.major}"
        code.go_if(NOT_EQUAL, Register.R7, one.major, other)
        for minor in sorted(one.open_minors):
            code.go_if(EQUAL, Register.R8, minor, "allow")
        if one.only_minors is None:
            code.go("judge")
        else:
            for minor in sorted(one.only_minors - one.open_minors):
                code.go_if(EQUAL, Register.R8, minor, "judge")
            code.go("allow")
        code.label(other)
    code.go("allow")


def _look_for_grant(code: Assembly, grants: int) -> None:
    """Allow devices with a grant that has not ended. Leaves the uid at r10 - 8."""
    code.compute(SHIFT_LEFT, Register.R7, MINOR_BITS)
    code.combine(OR, Register.R7, Register.R8)
    code.store(Register.STACK, -8, Register.R9)
    code.store(Register.STACK, -4, Register.R7)
    code.load_map(Register.R1, grants)
    code.move(Register.R2, Register.STACK)
    code.compute(ADD, Register.R2, -8)
    code.call(MAP_LOOKUP)
    code.go_if(EQUAL, Register.R0, 0, "count")
    code.load(Register.R8, Register.R0, 0, DOUBLE_WORD)
    code.call(BOOT_NANOSECONDS)
    code.go_if(BELOW, Register.R0, Register.R8, "allow")


def _count_refusal(code: Assembly, refusals: int) -> None:
    """Add 1 to the count of the uid at r10 - 8.

    Two first refusals of a uid at the same instant on two processors count as one.
    Refusals of further uids are not counted once the map is full.
    """
    code.load_map(Register.R1, refusals)
    code.move(Register.R2, Register.STACK)
    code.compute(ADD, Register.R2, -8)
    code.call(MAP_LOOKUP)
    code.go_if(EQUAL, Register.R0, 0, "first")
    code.set(Register.R1, 1)
    code.atomic_add(Register.R0, 0, Register.R1)
    code.go("refuse")
    code.label("first")
    code.store_value(Register.STACK, -16, 1, DOUBLE_WORD)
    code.load_map(Register.R1, refusals)
    code.move(Register.R2, Register.STACK)
    code.compute(ADD, Register.R2, -8)
    code.move(Register.R3, Register.STACK)
    code.compute(ADD, Register.R3, -16)
    code.set(Register.R4, ONLY_IF_NEW)
    code.call(MAP_UPDATE)
