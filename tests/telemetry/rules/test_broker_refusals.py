"""Whom the broker refuses is known from its own list, with the names of nodes."""

from datetime import timedelta

import pytest
import redis
from django.utils import timezone

from telemetry.alerts.service import judge_refused, mark_silent_nodes
from telemetry.inventory.broker_log import refused_nodes
from telemetry.models import Alert, Node
from telemetry.rules.alert_rules import REFUSED, SILENT
from telemetry.rules.broker_refusals import BrokerRefusal, RefusalCause, recent
from tests import brokers
from tests.factories import make_gpu, make_node


@pytest.fixture(params=brokers.KINDS)
def broker(request, tmp_path, settings):
    """A broker with the shipped users; atlas is enrolled there."""
    with brokers.running(request.param, tmp_path, nodes=["atlas"]) as running:
        settings.REDIS_URL = running.portal_url
        yield running


@pytest.mark.once
@pytest.mark.django_db
def test_a_wrong_password_an_unknown_name_and_a_renamed_node_are_known(
    broker, client, omar
):
    atlas = make_node("atlas")
    for name, password in (("atlas", "old"), ("ghost", "pw")):
        with pytest.raises(redis.AuthenticationError):
            broker.client(f"node-{name}", password).ping()
    # Not of nodes: a person who tries the portal's password, and a name of no node.
    for user in ("portal", "node-", "node--x", "nobody"):
        with pytest.raises(redis.AuthenticationError):
            broker.client(user, "wrong").ping()
    found = refused_nodes()
    assert set(found) == {"atlas", "ghost"}
    assert {one.why for one in found.values()} == {RefusalCause.PASSWORD}
    assert found["ghost"].address.startswith("127.0.0.1:")

    now = timezone.now()
    assert judge_refused(refused=found, now=now) == (1, 0)
    alert = Alert.objects.get(rule=REFUSED)
    assert alert.node == atlas
    client.force_login(omar)
    page = client.get("/nodes/atlas/").content.decode()
    assert "atlas was refused by the broker" in page
    assert ": wrong password." in page
    page = client.get("/alerts/").content.decode()
    assert "efused by the broker" in page
    page = client.get("/manage/").content.decode()
    assert "ghost was refused by the broker" in page
    assert "sh deploy/enroll ghost" in page
    assert "atlas was refused" not in page, "its alert says it"

    # It has the right password now, and the settings of another machine.
    node = broker.node("atlas")
    for call in (
        lambda: node.xadd("raw.borea", {"m": "{}"}),
        lambda: node.eval("return 1", 0),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            call()
    assert refused_nodes()["atlas"].why is RefusalCause.NAME
    assert refused_nodes()["atlas"].used == "borea"
    judge_refused(refused=refused_nodes(), now=now)
    page = client.get("/nodes/atlas/").content.decode()
    assert ": it uses the name borea." in page

    assert judge_refused(refused={}, now=now) == (0, 1)


@pytest.mark.django_db
def test_a_node_that_is_refused_has_one_alert():
    """Its silence has this cause."""
    now = timezone.now()
    node = make_node("atlas")
    make_gpu(node)
    Node.objects.update(last_seen_at=now - timedelta(minutes=11))
    assert mark_silent_nodes(now=now) == (1, 0)
    judge_refused(
        refused={"atlas": BrokerRefusal("atlas", RefusalCause.PASSWORD, 3.0)}, now=now
    )
    assert mark_silent_nodes(now=now) == (0, 1)
    assert list(Alert.objects.open().values_list("rule", flat=True)) == [REFUSED]
    judge_refused(refused={}, now=now)
    assert mark_silent_nodes(now=now)[0] == 1
    assert Alert.objects.open().get().rule == SILENT


@pytest.mark.django_db
def test_a_retired_machine_that_still_runs_is_named(broker, client, omar):
    Node.objects.filter(pk=make_node("borea").pk).update(retired=True)
    with pytest.raises(redis.AuthenticationError):
        broker.client("node-borea", "pw").ping()
    client.force_login(omar)
    page = client.get("/manage/").content.decode()
    assert "borea was refused by the broker" in page
    assert "It is retired." in page


def test_a_broker_whose_users_are_older_gives_nothing(broker, caplog):
    broker.admin.execute_command("ACL", "SETUSER", "portal", "-acl|log")
    assert refused_nodes() == {}
    assert "+acl|log" in caplog.text
    caplog.clear()
    broker.admin.execute_command("ACL", "SETUSER", "portal", "off")
    assert refused_nodes() == {}
    assert "does not tell whom it refused" in caplog.text


@pytest.mark.pure
def test_only_what_is_new_and_well_formed_counts():
    entry = {"reason": "auth", "username": "node-a", "object": "AUTH"}
    assert recent([entry | {"age-seconds": 200.0}]) == {}
    assert recent([entry | {"age-seconds": "nan?"}]) == {}
    assert recent([entry | {"age-seconds": 1.0, "username": "node-a\nb"}]) == {}
    assert recent([{}, entry | {"age-seconds": 1, "reason": "command"}]) == {}
    own = {"reason": "key", "object": "raw.a", "age-seconds": 1.0}
    assert recent([entry | own]) == {}, "its own key: another command was meant"
    both = recent([entry | {"age-seconds": 9.0}, entry | {"age-seconds": "2.5"}])
    assert both["a"].age_seconds == 2.5
