"""Commands to the gates of nodes, and the nodes' reports."""

import json
from datetime import timedelta

import pytest

from gpuportal.alerts.response import record_fact
from placement import tick as placement_tick
from placement.device_gate import service
from placement.jobs import service as jobs
from placement.jobs.nodes import command_queue
from placement.protocol import signing
from placement.protocol.device_grants import (
    GateFact,
    GateMode,
    GateState,
    UserRefusals,
    parse_gate_order,
)
from reservations import tick as reservation_tick
from reservations.models import AuditEntry
from reservations.operations.pools import set_gate
from reservations.rules.errors import NotFound
from telemetry.models import Alert, Node
from telemetry.rules.alert_rules import GATE, GATE_BYPASS
from tests.reservations.conftest import NOW, lab

__all__ = ["lab"]
SECOND = timedelta(seconds=1)


@pytest.fixture
def node(lab, omar) -> Node:
    node = Node.objects.get()
    Node.objects.update(last_seen_at=NOW)
    return node


@pytest.fixture
def sent(monkeypatch):
    """The commands that reached the broker. While ``away`` is set there is none."""

    class Sent(list):
        away = False

    found = Sent()

    def send_task(name, *, kwargs, queue, **_):
        if found.away:
            raise ConnectionError("no broker")
        assert (name, queue) == ("node.order", "node.node-a")
        signing.verify(kwargs["payload"], kwargs["signature"], signing.public_key_pem())
        found.append(parse_gate_order(kwargs["payload"]))

    monkeypatch.setattr(command_queue.current_app, "send_task", send_task)
    return found


def report(state=GateState.GATED, mode=GateMode.GATED, now=NOW, **more) -> bool:
    fact = GateFact(mode, state, 1, **more)
    return record_fact("node-a", fact.message(now.timestamp()), now)


def test_an_open_node_is_told_nothing(node, sent, lab, alice) -> None:
    lab.book(alice, lab.gpus[:1], NOW, 2)
    assert service.send_due(NOW) == {"gates_told": 0} and sent == []


@pytest.mark.once
def test_a_gated_node_is_told_changes_at_once_and_all_again_later(
    node, sent, lab, alice, omar
) -> None:
    assert set_gate(node_id=node.pk, mode="gated", actor=omar, now=NOW)
    assert placement_tick.tick(NOW)["gates_told"] == 1
    assert service.send_due(NOW + SECOND) == {"gates_told": 0}
    made = lab.book(alice, lab.gpus[:1], NOW, 2)
    assert service.send_due(NOW + 2 * SECOND) == {"gates_told": 1}
    assert service.send_due(NOW + 11 * SECOND) == {"gates_told": 0}
    assert service.send_due(NOW + 12 * SECOND) == {"gates_told": 1}
    empty, changed, again = sent
    assert (empty.mode, empty.grants) == (GateMode.GATED, ())
    assert [grant.until for grant in changed.grants] == [made.end.timestamp()]
    assert again.grants == changed.grants
    assert empty.sequence < changed.sequence < again.sequence
    assert again.expires_at == again.issued_at + command_queue.ORDER_SECONDS


@pytest.mark.once
def test_a_node_hears_of_the_grant_before_the_job(
    node, lab, alice, omar, monkeypatch
) -> None:
    made = lab.book(alice, lab.gpus[:1], NOW, 2)
    reservation_tick.tick(NOW)
    jobs.launch(
        user=alice,
        reservation_id=made.pk,
        name="try",
        kind="recipe",
        recipe="burn-in",
        recipe_settings={"seconds": 5},
        now=NOW,
    )
    set_gate(node_id=node.pk, mode="gated", actor=omar, now=NOW)
    kinds = []
    monkeypatch.setattr(
        command_queue.current_app,
        "send_task",
        lambda _, kwargs, **__: kinds.append(json.loads(kwargs["payload"])["kind"]),
    )
    placement_tick.tick(NOW)
    assert kinds == ["gate", "start"]


def test_numbers_grow_although_the_clock_goes_back(node, sent, omar) -> None:
    set_gate(node_id=node.pk, mode="watch", actor=omar, now=NOW)
    service.send_due(NOW)
    Node.objects.update(gate_sent_at=None, last_seen_at=NOW - 60 * SECOND)
    service.send_due(NOW - 60 * SECOND)
    first, second = sent
    assert second.sequence == first.sequence + 1
    assert first.sequence == NOW.timestamp() * 1000, "never below the clock"


def test_an_order_that_the_broker_did_not_take_is_sent_again(node, sent, omar) -> None:
    set_gate(node_id=node.pk, mode="gated", actor=omar, now=NOW)
    sent.away = True
    assert service.send_due(NOW) == {"gates_told": 0}
    sent.away = False
    assert service.send_due(NOW + SECOND) == {"gates_told": 1}


def test_the_queue_of_a_silent_node_does_not_grow(node, sent, omar) -> None:
    set_gate(node_id=node.pk, mode="gated", actor=omar, now=NOW)
    assert service.send_due(NOW + 2 * service.HEARD_WITHIN) == {"gates_told": 0}


def test_a_gate_is_told_to_open_until_it_reports_so(node, sent, omar) -> None:
    set_gate(node_id=node.pk, mode="gated", actor=omar, now=NOW)
    service.send_due(NOW)
    assert report()
    set_gate(node_id=node.pk, mode="open", actor=omar, now=NOW)
    assert Node.objects.get().gate == "pending"
    assert service.send_due(NOW + SECOND) == {"gates_told": 1}
    assert (sent[-1].mode, sent[-1].grants) == (GateMode.OPEN, ())
    assert report(GateState.OPEN, GateMode.OPEN)
    assert Node.objects.get().gate == "open"
    assert service.send_due(NOW + 20 * SECOND) == {"gates_told": 0}


def test_a_report_is_stored_and_alerts_open_and_close(node, omar) -> None:
    set_gate(node_id=node.pk, mode="gated", actor=omar, now=NOW)
    assert Node.objects.get().gate == "pending"
    assert report(
        GateState.FAILED,
        reason="an ordinary user could open /dev/nvidia0\x1b[2J",
        uncovered=("ada (docker)", "bob (sudo)"),
        refusals=(UserRefusals(1001, 7, "eve"),),
        unknown=("zoe",),
    )
    found = Node.objects.get()
    assert found.gate == "failed"
    assert found.gate_reason == "an ordinary user could open /dev/nvidia0 [2J"
    assert found.gate_report == {
        "refusals": [[1001, "eve", 7]],
        "uncovered": ["ada (docker)", "bob (sudo)"],
        "unknown": ["zoe"],
    }
    alerts = dict(Alert.objects.open().values_list("rule", "detail"))
    assert alerts[GATE]["reason"].startswith("an ordinary user could open")
    assert alerts[GATE_BYPASS]["reason"] == "ada (docker), bob (sudo)"
    assert report() and Node.objects.get().gate == "gated"
    assert not Alert.objects.open().exists()


def test_a_report_of_another_mode_and_a_wrong_one_change_nothing(node, omar) -> None:
    assert not report()
    set_gate(node_id=node.pk, mode="gated", actor=omar, now=NOW)
    message = GateFact(GateMode.GATED, GateState.GATED, 1).message(NOW.timestamp())
    for wrong in (
        {"state": "wonderful"},
        {"v": 2},
        {"refusals": [{"uid": -1, "count": 1}]},
        {"refusals": [{"uid": 1, "count": 2**63}]},
        {"uncovered": ["x"] * 65},
    ):
        assert not record_fact("node-a", message | wrong, NOW)
    assert not record_fact("node-z", message, NOW)
    assert Node.objects.get().gate_state == ""


def test_the_mode_is_audited_once(node, omar) -> None:
    assert set_gate(node_id=node.pk, mode="watch", actor=omar, now=NOW)
    assert not set_gate(node_id=node.pk, mode="watch", actor=omar, now=NOW)
    entry = AuditEntry.objects.get(verb="node.gate-watch")
    assert (entry.actor, entry.detail) == (omar, {"before": "open"})
    with pytest.raises(NotFound):
        set_gate(node_id=0, mode="watch", actor=omar, now=NOW)
