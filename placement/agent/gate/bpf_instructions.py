"""Encode the few BPF instructions that the device gate needs.

Source of every number: RFC 9669, "BPF Instruction Set Architecture (ISA)". The section
is named beside each group. Numbers of helpers and maps are not part of the ISA. They
come from the kernel's ``include/uapi/linux/bpf.h`` and belong to the program
(``device_program.py``). Pure Python: no system call, no state outside an ``Assembly``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

INSTRUCTION = struct.Struct("<BBhi")
"""Opcode, registers, offset, immediate value: section 3.1, little-endian machines."""

# Section 3.3, instruction classes: the low three bits of an opcode.
LDX = 0x01
ST = 0x02
STX = 0x03
JMP = 0x05
ALU = 0x04
ALU64 = 0x07
# Section 5, sizes of loads and stores.
WORD = 0x00
DOUBLE_WORD = 0x18
# Section 5, modes of loads and stores.
MEMORY = 0x60
ATOMIC = 0xC0
# Sections 4.1 and 4.3: the second operand is a register. Without: the immediate value.
REGISTER = 0x08
# Section 4.1, arithmetic.
ADD = 0x00
OR = 0x40
AND = 0x50
SHIFT_LEFT = 0x60
SHIFT_RIGHT = 0x70
MOVE = 0xB0
# Section 4.3, jumps.
ALWAYS = 0x00
EQUAL = 0x10
NOT_EQUAL = 0x50
BELOW = 0xA0
CALL = 0x80
EXIT = 0x90
LOAD_64 = 0x18
"""Section 5.4: a 64-bit immediate value in two instructions. ``MAP_DESCRIPTOR`` as the
source register makes it the map of a file descriptor."""
MAP_DESCRIPTOR = 1


class Register(IntEnum):
    """r0 holds results, r1 to r5 arguments, and calls keep r6 to r9. r10 is the end of
    the stack and cannot be changed (``Documentation/bpf/standardization/abi.rst``)."""

    R0 = 0
    R1 = 1
    R2 = 2
    R3 = 3
    R4 = 4
    R5 = 5
    R6 = 6
    R7 = 7
    R8 = 8
    R9 = 9
    STACK = 10


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of eight bytes. A jump names a label instead of an offset."""

    opcode: int
    target: int = 0
    source: int = 0
    offset: int = 0
    value: int = 0
    label: str = ""

    def encode(self, offset: int) -> bytes:
        """Return the eight bytes."""
        registers = self.source << 4 | self.target
        return INSTRUCTION.pack(self.opcode, registers, offset, self.value)


class Assembly:
    """Instructions in order, with labels that jumps name."""

    def __init__(self) -> None:
        self._instructions: list[Instruction] = []
        self._labels: dict[str, int] = {}

    def label(self, name: str) -> None:
        """Name the next instruction.

        Raises:
            ValueError: the name is taken.
        """
        if name in self._labels:
            raise ValueError(f"two labels are called {name!r}")
        self._labels[name] = len(self._instructions)

    def load(
        self, target: Register, base: Register, offset: int, size: int = WORD
    ) -> None:
        """``target = *(base + offset)``. A word is extended with zeros."""
        self._add(LDX | MEMORY | size, target, base, offset)

    def store(
        self, base: Register, offset: int, source: Register, size: int = WORD
    ) -> None:
        """``*(base + offset) = source``."""
        self._add(STX | MEMORY | size, base, source, offset)

    def store_value(
        self, base: Register, offset: int, value: int, size: int = WORD
    ) -> None:
        """``*(base + offset) = value``."""
        self._add(ST | MEMORY | size, base, 0, offset, value)

    def atomic_add(self, base: Register, offset: int, source: Register) -> None:
        """``lock *(u64 *)(base + offset) += source`` (section 5.3)."""
        self._add(STX | ATOMIC | DOUBLE_WORD, base, source, offset, ADD)

    def move(self, target: Register, source: Register) -> None:
        """``target = source``."""
        self._add(ALU64 | MOVE | REGISTER, target, source)

    def move_low_word(self, target: Register, source: Register) -> None:
        """``target = source & 0xffffffff``: arithmetic of 32 bits clears the rest."""
        self._add(ALU | MOVE | REGISTER, target, source)

    def set(self, target: Register, value: int) -> None:
        """``target = value``, a signed number of 32 bits."""
        self._add(ALU64 | MOVE, target, value=value)

    def compute(self, operation: int, target: Register, value: int) -> None:
        """``target = target (operation) value``."""
        self._add(ALU64 | operation, target, value=value)

    def combine(self, operation: int, target: Register, source: Register) -> None:
        """``target = target (operation) source``."""
        self._add(ALU64 | operation | REGISTER, target, source)

    def load_map(self, target: Register, descriptor: int) -> None:
        """``target = map``: the kernel replaces the descriptor by the map's address."""
        self._add(LOAD_64, target, MAP_DESCRIPTOR, value=descriptor)
        self._add(0)

    def call(self, helper: int) -> None:
        """Call a helper of the kernel: r0 = result, r1 to r5 are lost."""
        self._add(JMP | CALL, value=helper)

    def go(self, label: str) -> None:
        """Continue at a label."""
        self._add(JMP | ALWAYS, label=label)

    def go_if(
        self, condition: int, left: Register, right: Register | int, label: str
    ) -> None:
        """Continue at a label if ``left (condition) right``, as unsigned numbers."""
        if isinstance(right, Register):
            self._add(JMP | condition | REGISTER, left, right, label=label)
        else:
            self._add(JMP | condition, left, value=right, label=label)

    def leave(self) -> None:
        """End the program with r0 as its answer."""
        self._add(JMP | EXIT)

    def encode(self) -> bytes:
        """Return the program.

        Raises:
            ValueError: a jump names a label that does not exist.
        """
        return b"".join(
            one.encode(self._offset(number, one))
            for number, one in enumerate(self._instructions)
        )

    def _offset(self, number: int, one: Instruction) -> int:
        if not one.label:
            return one.offset
        if one.label not in self._labels:
            raise ValueError(f"no instruction is labelled {one.label!r}")
        return self._labels[one.label] - number - 1

    def _add(
        self,
        opcode: int,
        target: int = 0,
        source: int = 0,
        offset: int = 0,
        value: int = 0,
        label: str = "",
    ) -> None:
        one = Instruction(opcode, target, source, offset, value, label)
        self._instructions.append(one)
