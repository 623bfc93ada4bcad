"""The whole life of a reservation on a node with a real gate and stand-in cards.

Calendar, tick, signed command, the node's checks, kernel: only the broker is left out.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from placement import tick as placement_tick
from placement.agent.command_handler import OrderDesk
from placement.agent.gate.cgroup_gate import DeviceGate
from placement.jobs.nodes import command_queue
from placement.protocol import signing
from reservations import tick
from reservations.booking.release import release
from reservations.models import User
from reservations.operations.pools import set_gate
from reservations.sharing import co_use
from telemetry.models import Gpu, Node
from tests.placement.agent.gate.own_cgroup import (
    CARD,
    OTHER_CARD,
    OTHER_STUDENT,
    Student,
    own_cgroup,
)
from tests.placement.agent.gate.test_gate_keeper import GatedNode
from tests.reservations.conftest import NOW, at, lab

__all__ = ["lab"]


@pytest.fixture
def cgroup() -> Iterator[Path]:
    with own_cgroup() as path:
        yield path


class Site:
    """The portal and the node, moved to an instant together."""

    def __init__(self, node: GatedNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node = node
        node.node.order_key_file.write_text(signing.public_key_pem())
        self.desk = OrderDesk(node.node, publish=node.told.append)
        self.now = NOW
        monkeypatch.setattr(
            command_queue.current_app,
            "send_task",
            lambda _name, kwargs, **_: self.desk.take(
                kwargs["payload"], kwargs["signature"], now=self.now.timestamp()
            ),
        )

    def move(self, now) -> None:
        self.now = now
        Node.objects.update(last_seen_at=now)
        tick.tick(now)
        placement_tick.tick(now)
        seconds = now.timestamp()
        self.node.keeper.step(seconds, lambda fact: not self.node.told.append(fact))


def test_the_card_opens_at_the_start_and_closes_at_the_end(
    lab, alice, bob, omar, tmp_path, cgroup, monkeypatch
) -> None:
    """Alice is "ada" on the node and Bob is "bob"."""
    User.objects.filter(pk=alice.pk).update(unix_user="ada")
    site = Site(GatedNode(tmp_path, cgroup), monkeypatch)
    Node.objects.update(name="atlas")
    for gpu, uuid in zip(lab.gpus, ("GPU-full", "GPU-zero"), strict=False):
        Gpu.objects.filter(pk=gpu.pk).update(uuid=uuid)
    made = lab.book(alice, lab.gpus[:1], at(10), 2)
    later = lab.book(bob, lab.gpus[:1], at(12), 2)
    try:
        with Student(cgroup) as ada, Student(cgroup, OTHER_STUDENT) as robert:
            site.move(NOW)
            assert ada.opens(CARD), "the gate is off unless an admin sets it"
            set_gate(node_id=Node.objects.get().pk, mode="gated", actor=omar, now=NOW)
            site.move(at(9, 59))
            assert not ada.opens(CARD)
            site.move(at(10))
            assert ada.opens(CARD) and not ada.opens(OTHER_CARD)
            assert not robert.opens(CARD)
            co_use.share(reservation_id=made.pk, user=alice, username="bob", now=at(10))
            site.move(at(10, 1))
            assert robert.opens(CARD)
            release(reservation_id=made.pk, user=alice, now=at(10, 2))
            site.move(at(10, 2))
            assert not ada.opens(CARD) and not robert.opens(CARD)
            site.move(at(12))
            assert robert.opens(CARD) and not ada.opens(CARD)
            release(reservation_id=later.pk, user=bob, now=at(13))
            site.move(at(13))
            assert not robert.opens(CARD)
    finally:
        DeviceGate(cgroup).detach()
    told = [fact for fact in site.node.told if fact["kind"] == "gate"]
    assert told[-1]["state"] == "gated", json.dumps(told[-1])
