"""The gate in the kernel: one program at a control group, and its two maps.

The control group keeps the program, and the program keeps its maps, when the node's
worker ends. So nothing is pinned to a file system: a worker that starts again asks the
control group for its programs and finds its own one by the names of its maps.
Restarting or upgrading the worker neither opens the gate nor ends a grant.

Several programs of one control group all have to allow an opening. A new program is
therefore attached before the previous one is taken away, with the same maps.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from placement.agent.gate import bpf_system_call
from placement.agent.gate.bpf_system_call import GateUnavailable
from placement.agent.gate.device_program import (
    GRANT_END,
    GRANT_KEY,
    REFUSAL_COUNT,
    REFUSAL_KEY,
    GatedMajor,
    device_program,
)

GRANTS = "gp_grants"
REFUSALS = "gp_refusals"
MOST_GRANTS = 16_384
MOST_REFUSED_UIDS = 4_096
MOUNTS = Path("/proc/self/mounts")


@dataclass(frozen=True, slots=True, order=True)
class DeviceGrant:
    """A user's right to open a device until an instant."""

    uid: int
    device: int
    """Device number, as ``device_number`` returns it."""


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Descriptors of the attached program and its maps."""

    name: str
    program: int
    grants: int
    refusals: int

    def close(self) -> None:
        for descriptor in (self.program, self.grants, self.refusals):
            os.close(descriptor)


def boot_ns() -> int:
    """Return the clock that grants end by."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def root_cgroup(mounts: Path = MOUNTS) -> Path:
    """Return the root of the machine's tree of control groups, version 2.

    Raises:
        GateUnavailable: there is no such tree, or only a part of it is visible, as in a
            container.
    """
    for line in mounts.read_text().splitlines():
        _, place, kind, *_ = line.split(" ")
        if kind != "cgroup2":
            continue
        # Only the root of the whole tree lacks this file (cgroup v2, "cgroup.events").
        if (Path(place) / "cgroup.events").exists():
            raise GateUnavailable(
                "the worker runs in a container and sees only a part of the control "
                "groups"
            )
        return Path(place)
    raise GateUnavailable("no control groups of version 2 are mounted")


class DeviceGate:
    """The gate of one control group. Closing it leaves the kernel's part in place."""

    def __init__(self, cgroup: Path) -> None:
        self._cgroup = cgroup
        self._loaded: _Loaded | None = None

    @property
    def attached(self) -> bool:
        """Whether the program is at the control group. `find` looks for it."""
        return self._loaded is not None

    def find(self) -> bool:
        """Take over the program of an earlier worker. Return False if it left none.

        Raises:
            GateUnavailable: with the reason.
        """
        with _Cgroup(self._cgroup) as cgroup:
            found = _own_programs(cgroup)
        if not found:
            return False
        self.close()
        # The last one is the newest: an earlier worker ended between two steps.
        self._loaded = found.pop()
        for old in found:
            old.close()
        return True

    def attach(self, majors: tuple[GatedMajor, ...], *, refuse: bool) -> bool:
        """Attach the program for these devices; return whether anything changed.

        Keeps the maps, and with them all grants, of the program that is replaced.

        Raises:
            GateUnavailable: with the reason. Nothing is attached that was not before.
        """
        if not self.attached:
            self.find()
        before = self._loaded
        name = _name_of(majors, refuse=refuse)
        if before is not None and before.name == name and not self._leftovers(before):
            return False
        opened: list[int] = []
        try:
            grants, refusals = self._maps(before, opened)
            code = device_program(
                majors, grants=grants, refusals=refusals, refuse=refuse
            )
            program = bpf_system_call.load_program(name, code)
            opened.append(program)
            with _Cgroup(self._cgroup) as cgroup:
                others = _own_programs(cgroup)
                try:
                    bpf_system_call.attach(cgroup, program)
                    for one in others:
                        bpf_system_call.detach(cgroup, one.program)
                finally:
                    for one in others:
                        one.close()
        except OSError as error:
            _close(opened)
            why = bpf_system_call.reason(
                "attach a BPF program to the control groups", error
            )
            raise GateUnavailable(why) from error
        except GateUnavailable:
            _close(opened)
            raise
        self.close()
        self._loaded = _Loaded(name, program, grants, refusals)
        return True

    def detach(self) -> None:
        """Take the gate away: every device opens as without the portal.

        Raises:
            GateUnavailable: with the reason.
        """
        with _Cgroup(self._cgroup) as cgroup:
            for one in _own_programs(cgroup):
                try:
                    bpf_system_call.detach(cgroup, one.program)
                except OSError as error:
                    why = bpf_system_call.reason("detach a BPF program", error)
                    raise GateUnavailable(why) from error
                finally:
                    one.close()
        self.close()

    def close(self) -> None:
        """Close the descriptors. The gate stays as it is."""
        if self._loaded is not None:
            self._loaded.close()
            self._loaded = None

    def grants(self) -> dict[DeviceGrant, int]:
        """Return the end of each grant, in nanoseconds of the boot clock.

        Raises:
            GateUnavailable: the gate is not attached, or the kernel refused.
        """
        found = self._entries(
            self._attached_program.grants, GRANT_KEY.size, GRANT_END.size
        )
        return {
            DeviceGrant(*GRANT_KEY.unpack(key)): GRANT_END.unpack(end)[0]
            for key, end in found.items()
        }

    def put(self, grant: DeviceGrant, end_ns: int) -> None:
        """Let a user open a device until an instant of the boot clock.

        Raises:
            GateUnavailable: the gate is not attached, or the map is full.
        """
        key = GRANT_KEY.pack(grant.uid, grant.device)
        try:
            bpf_system_call.put(
                self._attached_program.grants, key, GRANT_END.pack(end_ns)
            )
        except OSError as error:
            raise GateUnavailable(
                bpf_system_call.reason("store a grant", error)
            ) from error

    def remove(self, grant: DeviceGrant) -> None:
        """Remove a grant, if it is there.

        Raises:
            GateUnavailable: the gate is not attached, or the kernel refused.
        """
        key = GRANT_KEY.pack(grant.uid, grant.device)
        try:
            bpf_system_call.remove(self._attached_program.grants, key)
        except OSError as error:
            raise GateUnavailable(
                bpf_system_call.reason("remove a grant", error)
            ) from error

    def refusals(self) -> dict[int, int]:
        """Return how many openings had no grant, by uid, since the gate exists.

        Raises:
            GateUnavailable: the gate is not attached, or the kernel refused.
        """
        found = self._entries(
            self._attached_program.refusals, REFUSAL_KEY.size, REFUSAL_COUNT.size
        )
        return {
            REFUSAL_KEY.unpack(key)[0]: REFUSAL_COUNT.unpack(count)[0]
            for key, count in found.items()
        }

    @property
    def _attached_program(self) -> _Loaded:
        if self._loaded is None:
            raise GateUnavailable("the gate is not attached")
        return self._loaded

    def _entries(
        self, descriptor: int, key_bytes: int, value_bytes: int
    ) -> dict[bytes, bytes]:
        try:
            return bpf_system_call.entries(
                descriptor, key_bytes=key_bytes, value_bytes=value_bytes
            )
        except OSError as error:
            raise GateUnavailable(
                bpf_system_call.reason("read a BPF map", error)
            ) from error

    def _leftovers(self, before: _Loaded) -> bool:
        """Return whether anything but one program of this name is attached."""
        with _Cgroup(self._cgroup) as cgroup:
            found = _own_programs(cgroup)
        names = [one.name for one in found]
        for one in found:
            one.close()
        return names != [before.name]

    @staticmethod
    def _maps(before: _Loaded | None, opened: list[int]) -> tuple[int, int]:
        """Return descriptors of the maps: those in use, or new ones."""
        if before is not None:
            opened.append(os.dup(before.grants))
            opened.append(os.dup(before.refusals))
        else:
            for name, key, value, most in (
                (GRANTS, GRANT_KEY, GRANT_END, MOST_GRANTS),
                (REFUSALS, REFUSAL_KEY, REFUSAL_COUNT, MOST_REFUSED_UIDS),
            ):
                opened.append(
                    bpf_system_call.make_map(
                        name,
                        key_bytes=key.size,
                        value_bytes=value.size,
                        entries=most,
                    )
                )
        return opened[0], opened[1]


class _Cgroup:
    """A descriptor of a control group's folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def __enter__(self) -> int:
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            why = f"{self._path} cannot be opened: {error.strerror}"
            raise GateUnavailable(why) from error
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _name_of(majors: tuple[GatedMajor, ...], *, refuse: bool) -> str:
    """Return the program's name: two programs of one name decide alike."""
    code = device_program(majors, grants=0, refusals=0, refuse=refuse)
    return f"gp_{hashlib.sha256(code).hexdigest()[:12]}"


def _own_programs(cgroup: int) -> list[_Loaded]:
    """Return the gate's programs at a control group, oldest first.

    Raises:
        GateUnavailable: with the reason.
    """
    found = []
    try:
        for number in bpf_system_call.attached_ids(cgroup):
            program = bpf_system_call.program_of(number)
            loaded = _own_program(program)
            if loaded is None:
                os.close(program)
            else:
                found.append(loaded)
    except OSError as error:
        _close([one for item in found for one in _descriptors(item)])
        why = bpf_system_call.reason(
            "list the BPF programs of the control groups", error
        )
        raise GateUnavailable(why) from error
    return found


def _own_program(program: int) -> _Loaded | None:
    """Return a program with its maps if it is the gate's. Raises OSError."""
    info = bpf_system_call.program_info(program)
    if not info.name.startswith("gp_"):
        return None
    maps: dict[str, int] = {}
    for number in info.map_ids:
        descriptor = bpf_system_call.map_of(number)
        maps[bpf_system_call.map_info(descriptor).name] = descriptor
    if maps.keys() != {GRANTS, REFUSALS}:
        _close(list(maps.values()))
        return None
    return _Loaded(info.name, program, maps[GRANTS], maps[REFUSALS])


def _descriptors(loaded: _Loaded) -> tuple[int, int, int]:
    return loaded.program, loaded.grants, loaded.refusals


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
