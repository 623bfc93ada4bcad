"""Which tokens are accepted, and whether two machines take turns."""

import pytest

from gpuportal.node_join.join_refusal import JoinFault, JoinRefused
from gpuportal.node_join.rules import MOST_WRONG, reachable_broker, token_fault
from placement.protocol.join_messages import secret_sum
from telemetry.rules.boot_history import MOST_BOOTS, with_boot

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("state", "secret", "wrong", "fault"),
    [
        ("waiting", "right", 0, None),
        ("waiting", "right", MOST_WRONG - 1, None),
        ("waiting", "right", MOST_WRONG, JoinFault.TRIED),
        ("used", "right", 0, JoinFault.USED),
        ("withdrawn", "right", 0, JoinFault.WITHDRAWN),
        ("expired", "right", 0, JoinFault.EXPIRED),
        # Only a person who has the secret learns what became of the token.
        ("waiting", "wrong", 0, JoinFault.UNKNOWN),
        ("used", "wrong", MOST_WRONG, JoinFault.UNKNOWN),
        ("waiting", "", 0, JoinFault.UNKNOWN),
    ],
)
def test_each_state_has_its_own_fault(state, secret, wrong, fault):
    found = token_fault(
        state=state, stored_sum=secret_sum("right"), secret=secret, wrong_count=wrong
    )
    assert found is fault


def test_each_fault_has_a_sentence_of_its_own():
    assert len({JoinRefused(fault).text() for fault in JoinFault}) == len(JoinFault)


@pytest.mark.parametrize(
    ("url", "reachable"),
    [
        ("rediss://portal:x@gpu.example.org:6379/0", True),
        ("redis://10.0.0.1/0", True),
        ("redis://127.0.0.2:6379/0", False),
        ("redis://[::1]:6379/0", False),
        ("unix:///run/valkey.sock?db=0", False),
        ("", False),
    ],
)
def test_a_broker_on_this_machine_only_is_not_reachable(url, reachable):
    assert reachable_broker(url) is reachable


def test_a_reboot_is_no_second_machine_and_a_boot_that_returns_is():
    boots, two = with_boot([], "a")
    assert (boots, two) == (["a"], False)
    boots, two = with_boot(boots, "a")
    assert (boots, two) == (["a"], False)
    boots, two = with_boot(boots, "b")
    assert (boots, two) == (["b", "a"], False)
    boots, two = with_boot(boots, "a")
    assert (boots, two) == (["a", "b"], True)
    assert with_boot(boots, "") == (["a", "b"], False)


def test_the_history_is_bounded():
    boots: list[str] = []
    for number in range(50):
        boots, two = with_boot(boots, str(number))
        assert not two
    assert len(boots) == MOST_BOOTS
