"""The frame of every page: access, content, cost."""

import time
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from gpuportal.pages.context import ALERTS_SHOWN
from telemetry.inventory.roster import record_roster
from telemetry.live.broadcast import publish_frame
from telemetry.models import Alert, Node
from telemetry.protocol.frame import Frame, encode
from telemetry.protocol.hardware import Backend, NodeInfo, NotIsolated
from tests.factories import PASSWORD, make_gpu, make_gpus, make_node

pytestmark = pytest.mark.django_db

PAGES = ("/", "/search", "/search?q=node", "/me/")


def publish(redis_client, *frames: Frame) -> None:
    """Put frames where ingest puts them."""
    with redis_client.pipeline() as pipe:
        for frame in frames:
            publish_frame(pipe, encode(frame))
        pipe.execute()


@pytest.mark.parametrize("address", [*PAGES, "/board/minute", "/gpus/1/"])
def test_a_visitor_is_sent_to_the_login_page(client: Client, address: str):
    answer = client.get(address)
    assert answer.status_code == 302
    assert answer.url.startswith("/login/?next=")


@pytest.mark.once
@pytest.mark.parametrize("address", PAGES)
def test_alice_opens_every_page_of_gpuportal(client: Client, alice, address: str):
    client.force_login(alice)
    answer = client.get(address)
    assert answer.status_code == 200
    assert "<title>" in answer.content.decode()


def test_the_login_page_signs_alice_in_and_leads_on(client: Client, alice):
    assert "Sign in" in client.get("/login/?next=/me/").content.decode()
    answer = client.post(
        "/login/", {"username": "alice", "password": PASSWORD, "next": "/me/"}
    )
    assert (answer.status_code, answer.url) == (302, "/me/")


def test_a_wrong_password_is_told_and_the_name_stays_typed(client: Client, alice):
    page = client.post("/login/", {"username": "alice", "password": "x"})
    text = page.content.decode()
    assert page.status_code == 200
    assert 'role="alert"' in text
    assert 'value="alice"' in text


def test_login_does_not_lead_to_another_site(client: Client, alice):
    answer = client.post(
        "/login/",
        {"username": "alice", "password": PASSWORD, "next": "https://evil.example/"},
    )
    assert answer.url == "/mine/"


def test_signing_out_takes_a_post_and_ends_the_session(client: Client, alice):
    client.force_login(alice)
    assert client.get("/logout/").status_code == 405
    assert client.post("/logout/").url == "/login/"
    assert client.get("/").status_code == 302


@pytest.mark.once
def test_the_theme_of_the_cookie_is_in_the_first_byte_of_the_page(client, alice):
    client.force_login(alice)
    assert "data-theme" not in client.get("/me/").content.decode().split(">", 2)[1]
    client.cookies["theme"] = "dark"
    assert '<html lang="en" data-theme="dark"' in client.get("/me/").content.decode()
    client.cookies["theme"] = '"><script>'
    assert "data-theme=" not in client.get("/me/").content.decode().split(">", 2)[1]


def test_only_the_operator_sees_the_admin(client: Client, alice, omar):
    client.force_login(alice)
    assert 'href="/admin/"' not in client.get("/").content.decode()
    client.force_login(omar)
    assert 'href="/admin/"' in client.get("/").content.decode()


@pytest.mark.once
def test_a_group_head_gets_an_entry_to_the_group(client: Client, alice, bob):
    membership = bob.memberships.get()
    membership.is_head = True
    membership.save()
    entry = f'href="/group/?account={membership.account_id}"'
    client.force_login(alice)
    assert entry not in client.get("/").content.decode()
    client.force_login(bob)
    assert entry in client.get("/").content.decode()
    assert client.get(f"/group/?account={membership.account_id}").status_code == 200


@pytest.mark.once
def test_the_page_one_is_on_is_marked(client: Client, alice):
    client.force_login(alice)
    assert 'href="/" aria-current="page"' in client.get("/").content.decode()
    assert 'href="/" aria-current="page"' not in client.get("/me/").content.decode()


# --- banners and alerts -----------------------------------------------------------


@pytest.mark.once
@pytest.mark.parametrize("address", PAGES)
def test_simulated_gpus_are_told_on_every_page(client: Client, alice, address: str):
    make_node("node-a", simulated=True)
    client.force_login(alice)
    assert "These GPUs are simulated" in client.get(address).content.decode()


def test_real_isolated_gpus_need_no_banner(client: Client, alice):
    make_node("node-a", simulated=False, isolation=Node.Isolation.WATCHED)
    client.force_login(alice)
    text = client.get("/").content.decode()
    assert "simulated" not in text
    assert "isolated" not in text


def test_nodes_without_isolation_are_named(client: Client, alice, omar):
    make_node("node-a", isolation=Node.Isolation.NONE)
    make_node("node-b", isolation=Node.Isolation.ENFORCED)
    client.force_login(alice)
    text = client.get("/").content.decode()
    assert "Only ready recipes run on node-a, no own scripts." in text
    client.force_login(omar)
    text = client.get("/").content.decode()
    assert "Own scripts are switched off on node-a, because" in text
    assert "The node has not reported why." in text


@pytest.mark.parametrize(
    ("why", "words"),
    [
        (NotIsolated.NOT_ROOT, "The node worker there does not run as root."),
        (NotIsolated.PORTAL, "make run ARGS=&#x27;--own-scripts yes&#x27;"),
        (NotIsolated.SCRIPTS, "GPUPORTAL_ALLOW_SCRIPTS is set in node.env there."),
        (NotIsolated.UNITS, "systemd cannot run each job in its own unit."),
    ],
)
def test_the_operator_reads_the_reason_that_the_node_reports(
    client: Client, omar, why, words
):
    info = NodeInfo(node="node-a", backend=Backend.SIMULATED, gpus=(), not_isolated=why)
    make_node("node-a", simulated=True)
    message = info.to_message(at=1.0)
    record_roster(
        info=NodeInfo.from_message(message, node="node-a"), now=timezone.now()
    )
    client.force_login(omar)
    banner = client.get("/help/").content.decode().partition('id="isolation-banner"')[2]
    banner = banner.partition("</p>")[0]
    assert words in banner
    assert ("as root" in banner) == (why == NotIsolated.NOT_ROOT)


def test_the_operator_reads_each_reason_with_its_nodes(client: Client, omar):
    for name, why in (("a", "portal"), ("b", "not-root"), ("c", "not-root")):
        make_node(name, isolation=Node.Isolation.NONE, not_isolated=why)
    client.force_login(omar)
    text = client.get("/help/").content.decode()
    assert "switched off on b and c, because jobs are not isolated there. The" in text
    assert "switched off on a, because jobs are not isolated there. “make" in text


@pytest.mark.once
def test_late_live_data_is_told_and_fresh_data_is_not(client, alice, redis_client):
    make_node("node-a")
    client.force_login(alice)
    publish(redis_client, Frame(1, time.time(), ()))
    assert "Live data is late" not in client.get("/").content.decode()
    publish(redis_client, Frame(1, time.time() - 90, ()))
    assert "the last reading is 1 min old" in client.get("/").content.decode()


def test_pages_open_while_the_broker_is_away(client: Client, alice, settings):
    make_node("node-a")
    settings.REDIS_URL = "unix:///nowhere/valkey.sock?db=0"
    client.force_login(alice)
    assert client.get("/").status_code == 200
    assert client.get("/board/minute").content == b""


def test_open_alerts_are_counted_and_closed_ones_are_not(client: Client, omar):
    now = timezone.now()
    one, two = make_gpus(2, make_node("node-a"))
    Alert.objects.create(rule="intruder", gpu=one, opened_at=now, last_seen_at=now)
    Alert.objects.create(
        rule="squatter",
        gpu=two,
        opened_at=now - timedelta(hours=2),
        last_seen_at=now,
        closed_at=now,
    )
    client.force_login(omar)
    text = client.get("/").content.decode()
    assert "1 open alert" in text
    assert "Someone else’s process on node-a:0" in text
    assert "quatter" not in text


@pytest.mark.once
def test_many_alerts_are_counted_and_the_worst_are_shown(client: Client, omar):
    now = timezone.now()
    for gpu in make_gpus(ALERTS_SHOWN + 3):
        Alert.objects.create(rule="idle hog", gpu=gpu, opened_at=now, last_seen_at=now)
    client.force_login(omar)
    text = client.get("/").content.decode()
    assert f"{ALERTS_SHOWN + 3} open alerts" in text
    assert text.count("Booked but idle on") == ALERTS_SHOWN


# --- the board's page -------------------------------------------------------------


def test_a_board_without_nodes_teaches_how_to_enrol_one(client: Client, alice):
    client.force_login(alice)
    assert "No node is enrolled" in client.get("/").content.decode()


def test_a_node_without_gpus_is_named_as_waiting(client: Client, alice):
    make_node("node-a")
    client.force_login(alice)
    text = client.get("/").content.decode()
    assert "No GPU has reported yet" in text
    assert "node-a" in text


def test_the_board_opens_with_a_skeleton_of_its_gpus(client: Client, alice):
    make_gpus(3, make_node("node-a"))
    client.force_login(alice)
    assert client.get("/").content.decode().count("gpu-ghost") == 3


@pytest.mark.once
@pytest.mark.parametrize("gpus", [1, 40])
def test_the_board_costs_the_same_queries_for_any_number_of_gpus(
    client, alice, gpus, django_assert_num_queries
):
    make_gpus(gpus, make_node("node-a"))
    client.force_login(alice)
    client.get("/")
    # Session, user; Gpus per node, nodes; nodes, alerts, notices, headed groups and
    # near maintenance of the top bar.
    with django_assert_num_queries(9):
        client.get("/")


def test_the_last_minute_is_served_oldest_first(client, alice, redis_client):
    client.force_login(alice)
    # Frames of an earlier roster may have another layout.
    publish(redis_client, *[Frame(6, float(second), ()) for second in range(90, 100)])
    frames = [Frame(7, float(second), ()) for second in range(100, 140)]
    publish(redis_client, *frames)
    body = client.get("/board/minute").content
    assert body == b"".join(encode(frame) for frame in frames)
    frames += [Frame(7, float(second), ()) for second in range(140, 170)]
    publish(redis_client, *frames[40:])
    body = client.get("/board/minute").content
    assert body == b"".join(encode(frame) for frame in frames[-60:])


# --- errors -----------------------------------------------------------------------


def test_a_wrong_address_gets_a_page_that_helps(client: Client, alice):
    client.force_login(alice)
    answer = client.get("/nothing-here/")
    assert answer.status_code == 404
    assert "Page not found" in answer.content.decode()


def test_a_visitor_with_a_wrong_address_gets_the_same_page(client: Client):
    answer = client.get("/nothing-here/")
    assert answer.status_code == 404
    assert "Page not found" in answer.content.decode()


def test_a_crash_is_a_page_without_a_query(client, alice, monkeypatch, settings):
    make_gpu()
    client.force_login(alice)
    client.raise_request_exception = False
    monkeypatch.setattr("gpuportal.pages.views.find", _crash)
    answer = client.get("/search?q=x")
    assert answer.status_code == 500
    assert "The portal failed here" in answer.content.decode()


def _crash(*_args: object) -> None:
    raise RuntimeError("on purpose")


def test_a_form_without_its_token_is_refused_in_words(alice):
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    answer = client.post("/me/tokens/", {"label": "x"})
    assert answer.status_code == 403
    assert "This form has expired" in answer.content.decode()
