"""The node's handling of commands: refusals, and idempotence."""

import time
from dataclasses import replace

import pytest

from placement.agent.command_handler import OrderDesk
from placement.protocol import signing
from placement.protocol.commands import OrderKind
from tests.placement.nodes import make_order, until


@pytest.fixture
def told():
    return []


@pytest.fixture
def desk(node, told):
    return OrderDesk(node, publish=told.append)


def give(desk, order, **kwargs):
    payload = order.payload()
    return desk.take(payload, signing.sign(payload), **kwargs)


def test_a_good_order_makes_the_jobs_folder(desk, told):
    order = make_order()
    assert give(desk, order)
    folder = desk.runner.folder(7, 1)
    assert folder.read("order")["payload"] == order.payload()
    assert told == []


def test_a_forged_order_is_refused_and_leaves_nothing(desk, told):
    order = make_order()
    signature = signing.sign(order.payload())
    assert not desk.take(replace(order, unix_user="root").payload(), signature)
    assert told[0]["event"] == "refused"
    assert (told[0]["code"], told[0]["job"]) == ("signature", 7)
    assert told[0]["nonce"] == order.nonce
    assert not desk.runner.folder(7, 1).path.exists()


def test_an_expired_order_is_refused(desk, told):
    order = make_order()
    assert not give(desk, order, now=order.expires_at + 1)
    assert told[0]["code"] == "expired"
    assert "expired 1 s ago" in told[0]["reason"]


def test_an_order_for_another_node_is_refused(desk, told):
    assert not give(desk, make_order(node="node2"))
    assert told[0]["code"] == "other-node"


def test_a_replayed_order_is_refused_even_by_a_restarted_worker(desk, told, node):
    order = make_order()
    assert give(desk, order)
    again = OrderDesk(node, publish=told.append)
    assert not give(again, order)
    assert told[0]["code"] == "replayed"


def test_the_same_attempt_ordered_again_is_one_job(desk, told):
    first, second = make_order(), make_order()
    assert give(desk, first) and give(desk, second)
    assert desk.runner.folder(7, 1).read("order")["payload"] == first.payload()
    assert told == []


def test_nonces_are_forgotten_when_their_orders_have_expired(desk):
    now = time.time()
    give(desk, make_order(), now=now)
    give(
        desk,
        make_order(issued_at=now + 200, expires_at=now + 250, deadline_at=now + 300),
        now=now + 210,
    )
    assert len(desk.nonces.path.read_text().splitlines()) == 1


def test_a_later_end_is_taken_over_and_an_older_order_is_not(desk):
    now = time.time()
    give(desk, make_order(issued_at=now))
    give(desk, make_order(issued_at=now + 1, deadline_at=now + 600))
    give(desk, make_order(issued_at=now + 0.5, deadline_at=now + 100))
    moved = desk.runner.folder(7, 1).read("deadline")
    assert moved["deadline_at"] == now + 600


def test_unknown_recipes_and_settings_are_refused(desk, told):
    assert not give(desk, make_order(recipe="rm-rf"))
    assert not give(desk, make_order(settings={"seconds": -1}))
    assert not give(desk, make_order(settings={"__import__": 1}))
    assert [fact["code"] for fact in told] == ["recipe"] * 3


def test_a_script_where_jobs_are_not_isolated_is_refused(node, told):
    desk = OrderDesk(replace(node, allow_scripts=False), publish=told.append)
    assert not give(desk, make_order(recipe=None, argv=()))
    assert told[0]["code"] == "isolation"
    # systemd does not run here: a node that is to enforce reports it and starts
    # nothing.
    strict = replace(node, allow_scripts=False, isolation="enforced")
    assert not give(OrderDesk(strict, publish=told.append), make_order())
    assert told[1]["code"] == "isolation"
    assert "GPUPORTAL_ISOLATION is enforced, but" in told[1]["reason"]


def test_an_order_without_gpus_is_refused(desk, told):
    assert not give(desk, make_order(gpu_uuids=(), gpu_indexes=()))
    assert told[0]["code"] == "malformed"


def test_a_node_without_its_key_says_so(node, told):
    node.order_key_file.unlink()
    assert not give(OrderDesk(node, publish=told.append), make_order())
    assert told[0]["code"] == "no-key"


@pytest.mark.parametrize(
    "payload", ["", "[]", '{"job": "x"}', '{"job": 1e99}', "\ud800"]
)
def test_garbage_is_refused_and_named_as_far_as_it_goes(desk, told, payload):
    assert not desk.take(payload, "")
    assert (told[0]["job"], told[0]["attempt"]) == (0, 0)


def test_a_stop_before_any_start_keeps_a_late_start_away(desk):
    give(desk, make_order(kind=OrderKind.STOP, reason="changed my mind"))
    give(desk, make_order())
    status = desk.runner.folder(7, 1).read("status")
    assert (status["event"], status["stopped"]) == ("exited", True)
    assert status["reason"] == "changed my mind"


def test_a_stop_between_acceptance_and_start_is_not_forgotten(desk):
    give(desk, make_order())
    give(desk, make_order(kind=OrderKind.STOP, reason="enough"))
    folder = desk.runner.folder(7, 1)
    assert folder.read("stop")["reason"] == "enough"
    desk.runner.start(folder)
    until(lambda: folder.read("status").get("event") == "exited")
    assert folder.read("status")["stopped"] is True
