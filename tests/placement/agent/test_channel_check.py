"""A node notices that its token or its order key is wrong, and reports it."""

import logging
from dataclasses import replace

import pytest
from django.test import Client
from django.utils import timezone

from placement.agent.channel_check import ChannelWatch, check
from placement.jobs.nodes.event_intake import record_fact
from placement.protocol import signing
from placement.protocol.events import ChannelState
from telemetry.inventory.enrollment import renew_token
from telemetry.models import Node
from tests.factories import make_node
from tests.placement import nodes

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def red(tmp_path, live_server):
    """Settings of an enrolled node with its own token."""
    row = make_node("red")
    token = row.new_token()
    row.save()
    settings = nodes.make_settings(tmp_path, name="red", web_url=live_server.url)
    settings.token_file.write_text(token)
    return settings


def kept(name="red"):
    return Node.objects.values_list("channel_state", "channel_detail").get(name=name)


def record(found, name="red"):
    return record_fact(name, found.message(0.0), timezone.now())


@pytest.mark.once
def test_a_node_with_its_own_token_and_the_portals_key_is_well(red):
    assert check(red).state is ChannelState.OK
    assert Node.objects.get(name="red").channel_at is not None


@pytest.mark.once
@pytest.mark.parametrize("wrong", ["token-of-nobody", "another node's", "renewed"])
def test_a_wrong_token_is_noticed(red, wrong):
    if wrong == "another node's":
        other = make_node("blue")
        red.token_file.write_text(other.new_token())
        other.save()
    elif wrong == "renewed":
        renew_token(name="red")
    else:
        red.token_file.write_text(wrong)
    found = check(red)
    assert found.state is ChannelState.REFUSED
    assert "red" in found.detail
    assert Node.objects.get(name="red").channel_at is None
    record(found)
    assert kept() == ("refused", found.detail)


@pytest.mark.once
def test_a_node_that_is_not_enrolled_says_so(red, caplog):
    ghost = replace(red, name="ghost")
    with caplog.at_level(logging.ERROR):
        ChannelWatch(ghost).check_and_report(lambda fact: True)
    assert "does not know ghost" in caplog.text
    record(check(ghost), "ghost")  # nobody of that name: nothing is kept, nothing fails


def test_a_missing_token_and_a_missing_or_strange_order_key_are_named(red, tmp_path):
    red.order_key_file.write_text("-----BEGIN PUBLIC KEY-----\nanother\n")
    assert check(red).state is ChannelState.ORDER_KEY
    red.order_key_file.unlink()
    found = check(red)
    assert found.state is ChannelState.ORDER_KEY
    assert "No such file" in found.detail
    red.token_file.unlink()
    assert check(red).state is ChannelState.TOKEN


@pytest.mark.once
def test_a_portal_that_is_away_is_no_wrong_token(red):
    found = check(replace(red, web_url="http://127.0.0.1:1"))
    assert found.state is ChannelState.DOWN


@pytest.mark.once
def test_the_watch_logs_a_change_once_and_tells_each_time(red, caplog):
    told = []

    def tell(fact):
        told.append(fact)
        return True

    watch = ChannelWatch(red)
    good = red.token_file.read_text()
    red.token_file.write_text("stale")
    with caplog.at_level(logging.INFO):
        assert not watch.check_and_report(tell)
        assert not watch.check_and_report(tell)
        red.token_file.write_text(good)
        assert watch.check_and_report(tell)
    assert [fact["state"] for fact in told] == ["refused", "refused", "ok"]
    assert caplog.text.count("no channel to the portal") == 1
    assert caplog.text.count("works again") == 1
    for fact in told:
        record_fact("red", fact, timezone.now())
    assert kept() == ("ok", "")


def test_a_fact_of_the_channel_that_makes_no_sense_is_refused(red, caplog):
    fact = {"v": 1, "kind": "channel", "at": 0, "state": "fine"}
    assert not record_fact("red", fact, timezone.now())
    assert "refused: state" in caplog.text
    assert kept() == ("", "")


def test_the_order_key_is_made_without_an_order(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUPORTAL_VAR", str(tmp_path))
    path = signing.public_key_file()
    assert path == tmp_path / "secret" / "order_key.pub"
    assert path.read_text().startswith("-----BEGIN PUBLIC KEY-----")
    assert path.with_name("order_key").stat().st_mode & 0o777 == 0o600


@pytest.mark.once
def test_only_a_node_is_answered(red):
    assert Client().get("/node/v1/hello").status_code == 401
