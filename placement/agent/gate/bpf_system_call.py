"""Call bpf(2) through ctypes: maps, programs, and their place at a control group.

Numbers and layouts are those of the kernel's ``include/uapi/linux/bpf.h`` (``enum
bpf_cmd``, ``union bpf_attr``). The kernel reads as many bytes of the attribute as it is
given and needs the rest to be zero, so one size serves all commands and all kernels.
See bpf(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import struct
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, tzinfo

from telemetry.protocol.coded_error import CodedError

CALL_NUMBERS = {"x86_64": 321, "aarch64": 280}
"""Number of bpf(2) by machine (the kernel's syscall tables)."""
ATTRIBUTE_BYTES = 128

MAP_CREATE = 0
MAP_LOOKUP_ELEM = 1
MAP_UPDATE_ELEM = 2
MAP_DELETE_ELEM = 3
MAP_GET_NEXT_KEY = 4
PROG_LOAD = 5
PROG_ATTACH = 8
PROG_DETACH = 9
PROG_GET_FD_BY_ID = 13
MAP_GET_FD_BY_ID = 14
OBJ_GET_INFO_BY_FD = 15
PROG_QUERY = 16

HASH_MAP = 1
CGROUP_DEVICE_PROGRAM = 15
CGROUP_DEVICE_PLACE = 6
"""``BPF_CGROUP_DEVICE``."""
ALLOW_MULTI = 2
"""``BPF_F_ALLOW_MULTI``: other programs stay, and all of them have to allow."""
LICENSE = b"Dual MIT/GPL"
NAME_BYTES = 16
"""``BPF_OBJ_NAME_LEN``, with the zero byte at its end."""
MOST_PROGRAMS = 64
"""``BPF_CGROUP_MAX_PROGS``: most programs of one kind at a control group."""
LOG_BYTES = 64 * 1024
INFO_BYTES = 256
MOST_REASON = 200


@dataclass(eq=False)
class GateUnavailable(CodedError):
    """This machine cannot have a device gate: kernel or rights are missing."""

    code = "gate-unavailable"
    why: str

    def text(self, zone: tzinfo = UTC) -> str:
        return f"the device gate does not work here: {self.why}"


@dataclass(frozen=True, slots=True)
class ProgramInfo:
    """The kernel's facts on a loaded program."""

    name: str
    map_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class MapInfo:
    """The kernel's facts on a map."""

    name: str
    key_bytes: int
    value_bytes: int


def bpf(command: int, attribute: bytes) -> tuple[int, bytes]:
    """Return the result of one call, and the attribute as the kernel left it.

    Raises:
        GateUnavailable: this machine's number of the call is unknown.
        OSError: the kernel refused.
    """
    number = CALL_NUMBERS.get(os.uname().machine)
    if number is None:
        raise GateUnavailable(f"no bpf(2) is known for {os.uname().machine}")
    buffer = ctypes.create_string_buffer(attribute, ATTRIBUTE_BYTES)
    library = ctypes.CDLL(None, use_errno=True)
    result = library.syscall(
        ctypes.c_long(number), ctypes.c_int(command), buffer, ATTRIBUTE_BYTES
    )
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result, buffer.raw


def make_map(name: str, *, key_bytes: int, value_bytes: int, entries: int) -> int:
    """Make a hash map and return its descriptor.

    Raises:
        GateUnavailable: with the reason.
    """
    endless = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    # Kernels before 5.11 count maps as locked memory. Without the right to raise the
    # limit the call below says why.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_MEMLOCK, endless)
    attribute = struct.pack("<7I", HASH_MAP, key_bytes, value_bytes, entries, 0, 0, 0)
    try:
        return bpf(MAP_CREATE, attribute + _name(name))[0]
    except OSError as error:
        raise GateUnavailable(reason("make a BPF map", error)) from error


def load_program(name: str, program: bytes) -> int:
    """Load a device program and return its descriptor.

    Raises:
        GateUnavailable: with the reason, which is the verifier's if it refused.
    """
    code = ctypes.create_string_buffer(program, len(program))
    license_text = ctypes.create_string_buffer(LICENSE)
    log = ctypes.create_string_buffer(LOG_BYTES)
    attribute = struct.pack(
        "<IIQQIIQII",
        CGROUP_DEVICE_PROGRAM,
        len(program) // 8,
        ctypes.addressof(code),
        ctypes.addressof(license_text),
        1,
        LOG_BYTES,
        ctypes.addressof(log),
        0,
        0,
    )
    try:
        return bpf(PROG_LOAD, attribute + _name(name))[0]
    except OSError as error:
        lines = log.value.decode("utf-8", "replace").splitlines()
        # The verifier ends with a line of numbers, "processed 12 insns ...".
        words = [line for line in lines if line and not line.startswith("processed")]
        why = f"the kernel refuses the program: {words[-1]}" if words else ""
        why = why or reason("load a BPF program", error)
        raise GateUnavailable(why[:MOST_REASON]) from error


def attach(cgroup: int, program: int) -> None:
    """Attach a program beside the others of a control group. Raises OSError."""
    place = struct.pack("<4I", cgroup, program, CGROUP_DEVICE_PLACE, ALLOW_MULTI)
    bpf(PROG_ATTACH, place)


def detach(cgroup: int, program: int) -> None:
    """Take a program away from a control group. Raises OSError."""
    bpf(PROG_DETACH, struct.pack("<4I", cgroup, program, CGROUP_DEVICE_PLACE, 0))


def attached_ids(cgroup: int) -> list[int]:
    """Return the ids of a control group's own device programs. Raises OSError."""
    ids = ctypes.create_string_buffer(4 * MOST_PROGRAMS)
    query = struct.pack(
        "<4IQI",
        cgroup,
        CGROUP_DEVICE_PLACE,
        0,
        0,
        ctypes.addressof(ids),
        MOST_PROGRAMS,
    )
    _, answer = bpf(PROG_QUERY, query)
    (count,) = struct.unpack_from("<I", answer, 24)
    return list(struct.unpack_from(f"<{count}I", ids.raw))


def program_of(number: int) -> int:
    """Return a descriptor of the program of an id. Raises OSError."""
    return bpf(PROG_GET_FD_BY_ID, struct.pack("<I", number))[0]


def map_of(number: int) -> int:
    """Return a descriptor of the map of an id. Raises OSError."""
    return bpf(MAP_GET_FD_BY_ID, struct.pack("<I", number))[0]


def program_info(program: int) -> ProgramInfo:
    """Describe a program (``struct bpf_prog_info``). Raises OSError."""
    ids = ctypes.create_string_buffer(4 * MOST_PROGRAMS)
    asked = struct.pack("<52xIQ", MOST_PROGRAMS, ctypes.addressof(ids))
    data = _info(program, asked)
    (count,) = struct.unpack_from("<I", data, 52)
    found = struct.unpack_from(f"<{min(count, MOST_PROGRAMS)}I", ids.raw)
    return ProgramInfo(_text(data, 64), found)


def map_info(descriptor: int) -> MapInfo:
    """Describe a map (``struct bpf_map_info``). Raises OSError."""
    data = _info(descriptor, b"")
    key_bytes, value_bytes = struct.unpack_from("<II", data, 8)
    return MapInfo(_text(data, 24), key_bytes, value_bytes)


def put(descriptor: int, key: bytes, value: bytes) -> None:
    """Store an entry of a map. Raises OSError; ENOSPC: the map is full."""
    _entry(MAP_UPDATE_ELEM, descriptor, key, ctypes.create_string_buffer(value))


def remove(descriptor: int, key: bytes) -> None:
    """Remove an entry of a map, if it is there. Raises OSError."""
    with suppress(FileNotFoundError):
        _entry(MAP_DELETE_ELEM, descriptor, key, None)


def entries(descriptor: int, *, key_bytes: int, value_bytes: int) -> dict[bytes, bytes]:
    """Return all entries of a map. Raises OSError.

    An entry that another process stores meanwhile may be missing. The gate's worker is
    the only one that stores grants.
    """
    found: dict[bytes, bytes] = {}
    key: bytes | None = None
    while True:
        following = ctypes.create_string_buffer(key_bytes)
        try:
            _entry(MAP_GET_NEXT_KEY, descriptor, key, following)
        except FileNotFoundError:
            return found
        key = following.raw
        value = ctypes.create_string_buffer(value_bytes)
        try:
            _entry(MAP_LOOKUP_ELEM, descriptor, key, value)
        except FileNotFoundError:
            continue
        if key in found:
            return found  # the map changed, and the walk began again
        found[key] = value.raw


def reason(act: str, error: OSError) -> str:
    """Return why a call failed, in words that an operator can act on."""
    if error.errno in (errno.EPERM, errno.EACCES):
        return f"this node's worker may not {act}: it has to be root"
    if error.errno in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return f"this kernel cannot {act}: it needs Linux 5.8 with CONFIG_CGROUP_BPF"
    return f"it could not {act}: {error.strerror}"


def _entry(
    command: int,
    descriptor: int,
    key: bytes | None,
    value: ctypes.Array[ctypes.c_char] | None,
) -> None:
    name = None if key is None else ctypes.create_string_buffer(key, len(key))
    attribute = struct.pack(
        "<IIQQQ",
        descriptor,
        0,
        0 if name is None else ctypes.addressof(name),
        0 if value is None else ctypes.addressof(value),
        0,
    )
    bpf(command, attribute)


def _info(descriptor: int, asked: bytes) -> bytes:
    buffer = ctypes.create_string_buffer(asked, INFO_BYTES)
    bpf(
        OBJ_GET_INFO_BY_FD,
        struct.pack("<IIQ", descriptor, INFO_BYTES, ctypes.addressof(buffer)),
    )
    return buffer.raw


def _name(name: str) -> bytes:
    data = name.encode()
    if len(data) >= NAME_BYTES:
        raise ValueError(f"{name!r} has more than {NAME_BYTES - 1} bytes")
    return data.ljust(NAME_BYTES, b"\0")


def _text(data: bytes, offset: int) -> str:
    raw = data[offset : offset + NAME_BYTES]
    return raw.partition(b"\0")[0].decode("ascii", "replace")
