"""Which of two machines with one disk is refused, and who never is."""

from dataclasses import replace
from random import Random

import pytest

from telemetry.protocol.node_proof import ProofFault
from telemetry.rules.clone_detection import KnownNode, ShownProof, judge_proof

pytestmark = pytest.mark.pure
KNOWN = KnownNode(
    enrolment="e", bound_enrolment="e", public_key="k", number=5, token_hash="h5"
)
SHOWN = ShownProof(enrolment="e", public_key="k", number=5, next_hash="h6")


@pytest.mark.parametrize(
    ("known", "shown", "found"),
    [
        ({}, {}, 6),
        # The answer was lost, and the machine asks for the same token.
        ({}, {"number": 4, "next_hash": "h5"}, 5),
        ({}, {"number": 4, "next_hash": "other"}, ProofFault.BEHIND),
        ({}, {"number": 3, "next_hash": "h5"}, ProofFault.BEHIND),
        ({}, {"number": 0}, ProofFault.BEHIND),
        # The portal was restored from a backup.
        ({}, {"number": 9}, 10),
        ({}, {"enrolment": "old"}, ProofFault.ENROLMENT),
        ({}, {"public_key": "other"}, ProofFault.OTHER_KEY),
        # The node was enrolled again, perhaps on another machine.
        ({"bound_enrolment": "old"}, {"number": 0, "public_key": "other"}, 1),
        ({"bound_enrolment": "", "public_key": "", "number": 0}, {"number": 0}, 1),
    ],
)
def test_each_proof_gets_its_number_or_its_fault(known, shown, found):
    assert judge_proof(replace(KNOWN, **known), replace(SHOWN, **shown)) == found


def test_the_second_of_two_machines_with_one_disk_is_always_refused():
    chance = Random(18)
    for _ in range(300):
        known, number = replace(KNOWN, number=0, token_hash=""), 0
        # A machine that loses answers and asks again is never refused.
        for _ in range(chance.randrange(1, 6)):
            shown = replace(SHOWN, number=number, next_hash=f"h{number + 1}")
            for _ in range(chance.randrange(1, 4)):
                found = judge_proof(known, shown)
                assert found == number + 1
                known = replace(known, number=found, token_hash=shown.next_hash)
            number += 1
        # Its disk is cloned here. Each machine makes the secret of its next token.
        for first, second in (("own", "clone"), ("clone", "own")):
            shown = replace(SHOWN, number=number, next_hash=first)
            ahead = replace(known, number=number + 1, token_hash=first)
            assert judge_proof(known, shown) == number + 1
            other = replace(shown, next_hash=second)
            assert judge_proof(ahead, other) is ProofFault.BEHIND
