"""The program of the device gate gives the same results as the plain model of its
rules.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.agent.gate.bpf_instructions import ALWAYS, JMP, Assembly, Register
from placement.agent.gate.device_program import (
    CONTEXT,
    GRANT_END,
    GRANT_KEY,
    REFUSAL_COUNT,
    REFUSAL_KEY,
    GatedMajor,
    device_number,
    device_program,
    gated_majors,
)
from telemetry.agent.device_files import NVIDIA_MAJOR
from tests.placement.agent.gate.bpf_interpreter import Machine
from tests.placement.agent.gate.gate_model import GateModel

pytestmark = pytest.mark.pure

GRANTS, REFUSALS = 4, 5
MIG_MAJOR = 237
RENDER_NODE = (226, 128)
MAJORS = gated_majors([(NVIDIA_MAJOR, 0), (MIG_MAJOR, 3), RENDER_NODE], MIG_MAJOR)
PROGRAMS = {
    refuse: device_program(MAJORS, grants=GRANTS, refusals=REFUSALS, refuse=refuse)
    for refuse in (False, True)
}
UIDS = (0, 33, 999, 1000, 1001, 65_534, 2**31, 2**32 - 1)
DEVICES = (
    (NVIDIA_MAJOR, 0),
    (NVIDIA_MAJOR, 1),
    (NVIDIA_MAJOR, 255),
    (MIG_MAJOR, 1),
    (MIG_MAJOR, 3),
    (1, 3),
    (226, 129),
    RENDER_NODE,
)
ACCESSES = ("rw", "r", "w", "", "m", "rwm", "rm", "wm")
BITS = {"m": 1, "r": 2, "w": 4}


class World:
    """The program in the interpreter and the model, with the same history."""

    def __init__(self, *, refuse: bool) -> None:
        self.program = PROGRAMS[refuse]
        self.grants: dict[bytes, bytearray] = {}
        self.refusals: dict[bytes, bytearray] = {}
        self.machine = Machine(
            maps={GRANTS: self.grants, REFUSALS: self.refusals},
            key_bytes={GRANTS: GRANT_KEY.size, REFUSALS: REFUSAL_KEY.size},
            value_bytes={GRANTS: GRANT_END.size, REFUSALS: REFUSAL_COUNT.size},
        )
        majors = {NVIDIA_MAJOR: frozenset({254, 255}), MIG_MAJOR: frozenset({1, 2})}
        self.model = GateModel(majors, frozenset({RENDER_NODE}), refuse)
        self.now_ns = 100

    def grant(self, uid: int, device: tuple[int, int], end_ns: int) -> None:
        self.grants[GRANT_KEY.pack(uid, device_number(*device))] = bytearray(
            GRANT_END.pack(end_ns)
        )
        self.model.ends[uid, *device] = end_ns

    def revoke(self, uid: int, device: tuple[int, int]) -> None:
        self.grants.pop(GRANT_KEY.pack(uid, device_number(*device)), None)
        self.model.ends.pop((uid, *device), None)

    def opens(
        self,
        uid: int,
        device: tuple[int, int],
        *,
        kind: str = "character",
        access: str = "rw",
    ) -> bool:
        """Return the program's result, which must be the model's."""
        bits = sum(BITS[letter] for letter in access)
        word = bits << 16 | (2 if kind == "character" else 1)
        self.machine.uid, self.machine.boot_ns = uid, self.now_ns
        answer = self.machine.run(self.program, CONTEXT.pack(word, *device))
        assert answer in (0, 1)
        expected = self.model.may(
            uid, device, now_ns=self.now_ns, kind=kind, access=access
        )
        assert bool(answer) == expected
        return expected

    def counted(self) -> dict[int, int]:
        return {
            REFUSAL_KEY.unpack(key)[0]: REFUSAL_COUNT.unpack(count)[0]
            for key, count in self.refusals.items()
        }


@settings(max_examples=1_000, deadline=None, database=None)
@given(refuse=st.booleans(), history=st.binary(min_size=3, max_size=72))
def test_random_histories_of_grants_agree_with_the_rules(
    refuse: bool, history: bytes
) -> None:
    """Each three bytes are one event: its kind, the user and the device, and a
    number.
    """
    world = World(refuse=refuse)
    for what, who, number in zip(*[iter(history)] * 3, strict=False):
        uid, device = UIDS[who & 7], DEVICES[who >> 3 & 7]
        if what & 3 == 0:
            world.grant(uid, device, world.now_ns + number - 16)
        elif what & 3 == 1:
            world.now_ns += number
        elif what & 31 == 2:
            world.revoke(uid, device)
        else:
            world.opens(
                uid,
                device,
                kind="block" if number > 240 else "character",
                access=ACCESSES[number & 7] if number > 127 else "rw",
            )
    assert world.counted() == world.model.refused


@pytest.mark.parametrize("refuse", [False, True])
def test_a_grant_opens_one_card_to_one_user_until_its_end(refuse: bool) -> None:
    world = World(refuse=refuse)
    card, other = (NVIDIA_MAJOR, 0), (NVIDIA_MAJOR, 1)
    world.grant(1000, card, 100)
    world.now_ns = 99
    assert world.opens(1000, card)
    assert world.opens(1000, other) is not refuse
    assert world.opens(1001, card) is not refuse
    world.now_ns = 100
    assert world.opens(1000, card) is not refuse
    assert world.counted() == {1000: 2, 1001: 1}


def test_a_minor_of_one_major_does_not_open_that_of_another() -> None:
    world = World(refuse=True)
    world.grant(1000, (NVIDIA_MAJOR, 3), 100)
    assert not world.opens(1000, (MIG_MAJOR, 3))


def test_system_accounts_and_control_devices_are_never_refused() -> None:
    world = World(refuse=True)
    assert world.opens(0, (NVIDIA_MAJOR, 0))
    assert world.opens(999, (NVIDIA_MAJOR, 0))
    assert world.opens(1000, (NVIDIA_MAJOR, 255))
    assert world.opens(1000, (MIG_MAJOR, 2))
    assert world.opens(1000, (226, 0)), "another card's display"
    assert world.counted() == {}


def test_the_program_needs_each_major_number_once() -> None:
    for majors in ((), (GatedMajor(1), GatedMajor(1))):
        with pytest.raises(ValueError, match="each of them once"):
            device_program(majors, grants=4, refusals=5, refuse=True)


def test_a_jump_needs_one_label_of_its_name() -> None:
    code = Assembly()
    code.go("away")
    with pytest.raises(ValueError, match="'away'"):
        code.encode()
    code.label("away")
    with pytest.raises(ValueError, match="two labels"):
        code.label("away")
    code.set(Register.R0, 1)
    code.leave()
    assert code.encode()[0] == JMP | ALWAYS
