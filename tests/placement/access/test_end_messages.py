"""Messages on the terminals of a Reservation's users before its end."""

import os
import pty
import pwd
from datetime import timedelta

import pytest
from django.utils import timezone

from placement.access import end_messages
from placement.agent.command_handler import OrderDesk
from placement.agent.process import terminals
from placement.protocol import signing
from placement.protocol.node_refusals import OrderRefused
from placement.protocol.user_messages import (
    UserMessage,
    is_user_message,
    parse_user_message,
)
from reservations.models import Allocation, CoUser, Reservation
from reservations.rules.lifecycle import State
from tests.factories import make_gpus, make_node, make_reservation

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def sent(monkeypatch):
    """What the portal sends to nodes."""
    found = []

    def send(message):
        found.append(message)
        return True

    monkeypatch.setattr(end_messages, "send_user_message", send)
    return found


@pytest.fixture
def held(alice, bob, redis_client):
    """Alice's reservation on two nodes, which she shares with Bob."""
    for user, name in ((alice, "al"), (bob, "bo")):
        user.unix_user = name
        user.save()
    gpus = make_gpus(2, make_node("node1")) + make_gpus(1, make_node("node2"))
    made = make_reservation(alice, gpus, state=State.ACTIVE)
    CoUser.objects.create(reservation=made, user=bob, added_by=alice)
    return made


def told(sent):
    return sorted((one.node, one.unix_user) for one in sent)


BOTH = [(node, name) for node in ("node1", "node2") for name in ("al", "bo")]


@pytest.mark.once
def test_each_user_is_told_on_each_node_ten_minutes_and_one_minute_before(held, sent):
    for left, count in ((601, 0), (600, 4), (599, 4), (300, 4), (60, 8), (59, 8)):
        end_messages.send_due(held.end - timedelta(seconds=left))
        assert len(sent) == count, left
    assert told(sent[:4]) == told(sent[4:]) == BOTH
    assert f"reservation {held.pk} on node1 ends in 10 min" in sent[0].text
    assert "ends in 60 s" in sent[-1].text


def test_an_extension_moves_the_messages_and_a_late_tick_sends_only_one(held, sent):
    end_messages.send_due(held.end - timedelta(seconds=599))
    later = held.end + timedelta(hours=1)
    Reservation.objects.update(end=later, booked_end=later)
    Allocation.objects.update(end=later)
    end_messages.send_due(held.end - timedelta(seconds=30))
    assert len(sent) == 4
    end_messages.send_due(later - timedelta(seconds=20))
    assert len(sent) == 8 and "20 s" in sent[-1].text


def test_only_users_of_a_running_reservation_are_told(held, sent, alice, bob):
    soon = held.end - timedelta(seconds=100)
    CoUser.objects.all().delete()
    alice.unix_user = ""
    alice.save()
    end_messages.send_due(soon)
    assert sent == []
    alice.unix_user = "al"
    alice.is_active = False
    alice.save()
    end_messages.send_due(soon)
    alice.is_active = True
    alice.save()
    end_messages.send_due(held.end + timedelta(seconds=1))
    Allocation.objects.filter(gpu__node__name="node1").update(live=False)
    end_messages.send_due(soon)
    assert told(sent) == [("node2", "al")], "node1 was given back"


@pytest.mark.once
def test_nothing_is_sent_during_an_outage_of_the_broker(held, sent, monkeypatch):
    def lost(*_args, **_more):
        raise ConnectionError("no broker")

    monkeypatch.setattr(end_messages.BROKER, "set", lost)
    assert end_messages.send_due(held.end - timedelta(seconds=9)) == {"end_messages": 0}


# --- the node -------------------------------------------------------------------------


def message(now, **more):
    words = {"node": "node1", "nonce": "a1", "unix_user": "al", "text": "ends"} | more
    at = {"issued_at": now, "expires_at": now + 30.0}
    return UserMessage(kind="tell_user", **at | words)


@pytest.mark.once
def test_a_node_writes_a_signed_message_once(node, monkeypatch):
    wrote = []
    monkeypatch.setattr(
        "placement.agent.command_handler.tell_account",
        lambda name, text: wrote.append((name, text)) or 1,
    )
    facts = []
    desk, now = OrderDesk(node, publish=facts.append), timezone.now().timestamp()
    payload = message(now).payload()
    assert not desk.take(payload, signing.sign(payload + " "))
    assert desk.take(payload, signing.sign(payload))
    assert not desk.take(payload, signing.sign(payload)), "replayed"
    for wrong in (
        message(now, node="node2", nonce="b1"),
        message(now - 600, nonce="b2"),
    ):
        again = wrong.payload()
        assert not desk.take(again, signing.sign(again))
    assert wrote == [("al", "ends")]
    assert facts == [], "a message is not answered"


@pytest.mark.once
@pytest.mark.parametrize("name", ("", "../etc", "a b", "-x", "root\n"))
def test_a_message_names_an_account(name):
    payload = message(1.0).payload().replace('"al"', repr(name).replace("'", '"'))
    assert is_user_message(payload)
    with pytest.raises(OrderRefused):
        parse_user_message(payload)


@pytest.mark.once
def test_only_a_persons_own_terminals_are_written(tmp_path, monkeypatch):
    wrote = []
    monkeypatch.setattr(
        terminals, "write_to_user", lambda *found: wrote.append(found) or 1
    )
    for name in ("root", "daemon", "nobody", "no-such-account"):
        assert terminals.tell_account(name, "text") == 0
    entry = pwd.getpwuid(os.getuid())
    person = pwd.struct_passwd((*entry[:2], 4321, *entry[3:]))
    monkeypatch.setattr(terminals.pwd, "getpwnam", lambda name: person)
    assert terminals.tell_account("al", "text\x1b[2J", tmp_path) == 1
    assert wrote == [(4321, "text [2J", tmp_path)]


@pytest.mark.once
@pytest.mark.skipif(os.getuid() != 0, reason="root gives a terminal to another user")
def test_the_warning_reaches_a_real_terminal_of_the_holder(held, node, monkeypatch):
    """From the tick through the signed order to the terminal, at both moments."""
    person = pwd.struct_passwd(("al", "x", 54_321, 54_321, "", "/", "/bin/sh"))
    monkeypatch.setattr(terminals.pwd, "getpwnam", lambda name: person)
    desk = OrderDesk(node, publish=[].append)
    monkeypatch.setattr(
        end_messages,
        "send_user_message",
        lambda one: desk.take(one.payload(), signing.sign(one.payload())),
    )
    CoUser.objects.all().delete()
    Allocation.objects.filter(gpu__node__name="node2").update(live=False)
    master, slave = pty.openpty()
    try:
        os.fchown(slave, person.pw_uid, -1)
        shown = []
        for seconds in (599, 59):
            Allocation.objects.update(end=timezone.now() + timedelta(seconds=seconds))
            end_messages.send_due(timezone.now())
            shown.append(os.read(master, 1000).decode())
        assert f"reservation {held.pk} on node1 ends in 10 min" in shown[0]
        assert "ends in 59 s. Save your work, or extend it." in " ".join(
            shown[1].split()
        )
    finally:
        os.close(master)
        os.close(slave)
