"""Interpret a BPF program of the device gate without a kernel: the opcodes that it
uses.

Memory is a set of regions at made-up addresses. An opcode, a helper or an address that
the interpreter does not know fails the test, as the kernel's verifier would refuse it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

INSTRUCTION = struct.Struct("<BBhi")
WORD_64 = 2**64 - 1
CONTEXT_AT = 0x1000
STACK_AT = 0x2000
STACK_BYTES = 512
VALUES_AT = 0x10_0000
MAPS_AT = 0x7000_0000
MOST_STEPS = 500


@dataclass
class Machine:
    """The processor, its maps by descriptor, and the results of helpers."""

    maps: dict[int, dict[bytes, bytearray]]
    key_bytes: dict[int, int]
    value_bytes: dict[int, int]
    uid: int = 0
    boot_ns: int = 0
    _regions: dict[int, bytearray] = field(default_factory=dict)

    def run(self, program: bytes, context: bytes) -> int:
        """Return the value that the program leaves in r0."""
        code = list(INSTRUCTION.iter_unpack(program))
        self._regions = {
            CONTEXT_AT: bytearray(context),
            STACK_AT: bytearray(STACK_BYTES),
        }
        registers = [0] * 11
        registers[1], registers[10] = CONTEXT_AT, STACK_AT + STACK_BYTES
        at = 0
        for _ in range(MOST_STEPS):
            opcode, pair, offset, value = code[at]
            target, source = pair & 15, pair >> 4
            at += 1
            family = opcode & 7
            if opcode == 0x18:
                assert source == 1, "not the map of a descriptor"
                assert code[at][:3] == (0, 0, 0)
                registers[target] = MAPS_AT + value
                at += 1
            elif opcode == 0x95:
                return registers[0]
            elif opcode == 0x85:
                registers[0] = self._help(value, registers)
                registers[1:6] = [0] * 5
            elif family == 5:
                right = registers[source] if opcode & 8 else value & WORD_64
                if _jumps(opcode & 0xF0, registers[target], right):
                    at += offset
            elif family in (4, 7):
                right = registers[source] if opcode & 8 else value & WORD_64
                result = _computed(opcode & 0xF0, registers[target], right)
                registers[target] = result & (WORD_64 if family == 7 else 2**32 - 1)
            elif opcode in (0x61, 0x79):
                size = 4 if opcode == 0x61 else 8
                data = self._read(registers[source] + offset, size)
                registers[target] = int.from_bytes(data, "little")
            elif opcode in (0x63, 0x7A):
                size = 4 if opcode == 0x63 else 8
                number = registers[source] if opcode == 0x63 else value
                data = (number & (2 ** (8 * size) - 1)).to_bytes(size, "little")
                self._write(registers[target] + offset, data)
            elif opcode == 0xDB and value == 0:
                place = registers[target] + offset
                before = int.from_bytes(self._read(place, 8), "little")
                after = (before + registers[source]) & WORD_64
                self._write(place, after.to_bytes(8, "little"))
            else:
                raise AssertionError(f"unknown opcode {opcode:#x}")
        raise AssertionError("the program does not end")

    def _help(self, helper: int, registers: list[int]) -> int:
        if helper == 15:
            return 77 << 32 | self.uid  # the gid is in the high half
        if helper == 125:
            return self.boot_ns
        number = registers[1] - MAPS_AT
        key = bytes(self._read(registers[2], self.key_bytes[number]))
        entries = self.maps[number]
        if helper == 1:
            if key not in entries:
                return 0
            place = VALUES_AT + 0x100 * len(self._regions)
            self._regions[place] = entries[key]
            return place
        assert helper == 2 and registers[4] == 1, f"unknown helper {helper}"
        value = self._read(registers[3], self.value_bytes[number])
        entries.setdefault(key, bytearray(value))
        return 0

    def _place(self, address: int, size: int) -> tuple[bytearray, int]:
        for start, region in self._regions.items():
            if start <= address and address + size <= start + len(region):
                return region, address - start
        raise AssertionError(f"{size} bytes at {address:#x} are nobody's")

    def _read(self, address: int, size: int) -> bytearray:
        region, offset = self._place(address, size)
        return region[offset : offset + size]

    def _write(self, address: int, data: bytes) -> None:
        region, offset = self._place(address, len(data))
        region[offset : offset + len(data)] = data


def _jumps(condition: int, left: int, right: int) -> bool:
    return {
        0x00: True,
        0x10: left == right,
        0x50: left != right,
        0xA0: left < right,
    }[condition]


def _computed(operation: int, left: int, right: int) -> int:
    if operation in (0x60, 0x70):
        return left << right if operation == 0x60 else left >> right
    return {
        0x00: left + right,
        0x40: left | right,
        0x50: left & right,
        0xB0: right,
    }[operation]
