"""Notices on their way: real mail and real HTTP on loopback, deaths, quiet hours."""

import hashlib
import hmac
import json
from datetime import UTC, datetime, time, timedelta

import pytest
from django.test import Client

from reservations.models import Delivery, Notice, NoticeSettings
from reservations.notifications import delivery, message_rendering, preferences
from reservations.notifications.service import notify
from tests.reservations.conftest import NOW
from tests.reservations.notifications.outside import receiver, smtp

pytestmark = pytest.mark.django_db(transaction=True)

MINUTE = timedelta(minutes=1)


@pytest.fixture
def alice(alice):
    alice.email = "alice@example.org"
    alice.save()
    return alice


@pytest.fixture
def mail(settings):
    with smtp(settings) as postman:
        yield postman


@pytest.fixture
def hook(settings):
    settings.WEBHOOK_LOOPBACK_HTTP = True
    with receiver() as server:
        yield server


def told(user, kind="released", *, now=NOW, key="", **detail):
    return notify(
        user=user, kind=kind, detail={"reason": "idle"} | detail, now=now, key=key
    )


def states():
    rows = Delivery.objects.order_by("pk")
    return [(row.channel, row.state, row.tries) for row in rows]


@pytest.mark.once
def test_a_mail_is_tried_again_under_one_number_and_taken_once(alice, mail):
    assert told(alice, key="once") is not None
    assert told(alice, key="once") is None, "the same key is told once"
    mail.answers = ["451 later"]
    assert delivery.due(now=NOW)["retried"] == 1
    assert delivery.due(now=NOW + MINUTE / 2) == dict.fromkeys(
        ("sent", "retried", "failed", "dropped"), 0
    ), "not before its time"
    assert delivery.due(now=NOW + MINUTE)["sent"] == 1
    assert states() == [("mail", "sent", 2)]
    assert delivery.due(now=NOW + 99 * MINUTE)["sent"] == 0
    ((to, letter),) = mail.mails
    assert to == ["alice@example.org"]
    assert letter["Subject"] == "[GPU Portal] Your GPUs were released"
    assert letter["Message-ID"] == (
        f"<notices.{Delivery.objects.get().batch}@example.org>"
    )
    assert letter["Auto-Submitted"] == "auto-generated"
    text = letter.get_content()
    assert "was released, because it stayed idle after the warning" in text
    assert "https://gpu.example.org/me/notices/" in text


def test_a_worker_that_dies_loses_nothing_and_sends_nothing_twice(
    alice, mail, monkeypatch
):
    told(alice)

    def die(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(message_rendering, "send", die)
        with pytest.raises(KeyboardInterrupt):
            delivery.due(now=NOW)
    assert states() == [("mail", "sending", 1)]
    number = Delivery.objects.get().batch
    assert delivery._claim(alice.pk, "mail", "", NOW) is None, "claimed already"
    assert delivery.due(now=NOW + MINUTE)["sent"] == 0, "its claim still holds"
    assert delivery.due(now=NOW + 3 * MINUTE)["sent"] == 1
    assert delivery.due(now=NOW + 9 * MINUTE)["sent"] == 0
    assert len(mail.mails) == 1
    assert Delivery.objects.get().batch == number, "receivers can tell a second one"


def test_a_delivery_is_forgotten_a_month_after_its_end(alice, mail, monkeypatch):
    told(alice)
    delivery.due(now=NOW)
    later = NOW + timedelta(days=31)
    told(alice, now=later)  # waits
    assert delivery.forget_old(later - timedelta(days=2)) == 0
    assert delivery.forget_old(later) == 1
    assert Delivery.objects.get().state == "pending"
    assert delivery.forget_old(later + timedelta(days=90)) == 0
    assert Notice.objects.count() == 2


@pytest.mark.once
def test_an_address_that_is_refused_ends_and_so_do_endless_tries(alice, mail):
    told(alice)
    mail.answers = ["451 later"] * 20
    now = NOW
    for _ in range(10):
        delivery.due(now=now)
        now += timedelta(hours=7)
    assert states() == [("mail", "failed", 6)]
    assert mail.mails == []


@pytest.mark.once
def test_quiet_hours_hold_back_and_end_in_one_digest(alice, mail):
    preferences.choose(
        user=alice,
        chosen={kind: ["mail"] for kind in Notice.Kind.values},
        quiet_from=time(22),
        quiet_until=time(7),
        now=NOW,
    )
    night = datetime(2026, 3, 2, 23, 30, tzinfo=UTC)
    told(alice, now=night)
    told(alice, "refunded", now=night + 60 * MINUTE, refund_gpu_seconds=36_000)
    told(alice, "ending_soon", now=night, end_at="2026-03-03T00:00:00+00:00")
    assert sum(delivery.due(now=night + 120 * MINUTE).values()) == 0
    morning = datetime(2026, 3, 3, 7, tzinfo=UTC)
    assert delivery.due(now=morning) == {
        "sent": 2,
        "retried": 0,
        "failed": 0,
        "dropped": 0,
    }
    assert sorted(s for _, s, _ in states()) == ["dropped", "sent", "sent"]
    ((_, letter),) = mail.mails
    assert letter["Subject"].startswith("[GPU Portal] 2 notices: ")
    text = letter.get_content()
    assert "You got everything back: 10 credits." in text
    assert "ends at" not in text, "who reads it at seven is told nothing stale"


def test_nothing_is_queued_for_who_is_muted_or_has_no_way(alice, bob, mail):
    preferences.mute(user=alice, until=NOW + 60 * MINUTE, now=NOW)
    told(alice)
    told(bob)
    assert states() == [], "Bob has no address"
    told(alice, now=NOW + 61 * MINUTE)
    assert len(states()) == 1
    preferences.mute(user=alice, until=NOW + 90 * MINUTE, now=NOW)
    assert delivery.due(now=NOW + 62 * MINUTE)["dropped"] == 1
    assert Notice.objects.filter(user=alice).count() == 2, "the page tells always"


@pytest.mark.once
def test_a_webhook_is_signed_and_its_secret_is_in_no_table(alice, hook):
    secret = preferences.set_webhook(user=alice, url=hook.url, now=NOW)
    kept = NoticeSettings.objects.values().get()
    assert secret not in str(kept) and kept["webhook_url"] == hook.url
    told(alice)
    assert delivery.due(now=NOW)["sent"] == 1
    ((path, headers, body),) = hook.heard
    assert path == "/hook?x=1"
    message = headers["X-Portal-Timestamp"].encode() + b"." + body
    proof = hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()
    assert headers["X-Portal-Signature"] == f"sha256={proof}"
    got = json.loads(body)
    assert got["delivery"] == headers["X-Portal-Delivery"]
    assert [one["kind"] for one in got["notices"]] == ["released"]
    assert preferences.set_webhook(user=alice, url=hook.url, now=NOW) != secret


def test_a_webhook_that_fails_is_tried_then_switched_off_and_said_so(alice, hook, mail):
    preferences.set_webhook(user=alice, url=hook.url, now=NOW)
    told(alice, "job_done", text="ready")
    hook.answers = [302, 500, 500, 500, 500, 500, *[500] * 9]
    now = NOW
    for _ in range(6):
        delivery.due(now=now)
        now += timedelta(hours=7)
    assert states() == [("webhook", "failed", 6)]
    assert {path for path, _, _ in hook.heard} == {"/hook?x=1"}, (
        "no redirect is followed"
    )
    assert "500" in Delivery.objects.get().error
    told(alice, "job_done", now=now, text="ready")
    for _ in range(5):
        delivery.due(now=now)
        now += timedelta(hours=7)
    notice = Notice.objects.get(kind="webhook_off")
    assert NoticeSettings.objects.get().webhook_disabled_at is not None
    assert len(hook.heard) == 10, "nothing more goes out"
    ((_, letter),) = mail.mails
    assert "accepted none of the last 10 messages" in letter.get_content()
    assert notice.user == alice
    preferences.enable_webhook(user=alice, now=now)
    hook.answers = [410]
    told(alice, "job_done", now=now, text="ready")
    assert delivery.due(now=now)["failed"] == 1
    assert NoticeSettings.objects.get().webhook_disabled_at == now, "gone for good"


def test_the_link_of_a_mail_ends_that_kind_without_a_login(alice, mail):
    told(alice)
    delivery.due(now=NOW)
    link = mail.mails[0][1]["List-Unsubscribe"].strip(" <>")
    path = link.removeprefix("https://gpu.example.org")
    anybody = Client(enforce_csrf_checks=True)
    assert anybody.get(path).status_code == 200
    assert not NoticeSettings.objects.exists(), "looking changes nothing"
    assert "No more mails" in anybody.post(path).content.decode()
    assert NoticeSettings.objects.get().chosen["released"] == ["webhook"]
    told(alice, now=NOW + MINUTE)
    told(alice, "refunded", now=NOW + MINUTE)
    assert delivery.due(now=NOW + MINUTE)["sent"] == 1
    assert len(mail.mails) == 2
    assert anybody.get(path[:-3] + "/").status_code == 404


HOSTILE = "<!channel> @all @room *[click](https://evil.example)* & more"


def sent_to_chat(alice, hook, name: str) -> tuple[dict[str, str], bytes]:
    """Send one Notice through the delivery queue. Return what the chat's server
    received.
    """
    assert (
        preferences.set_webhook(user=alice, url=hook.url, now=NOW, format_name=name)
        == ""
    )
    told(alice, "job_done", text=HOSTILE, job=7)
    assert delivery.due(now=NOW)["sent"] == 1
    ((path, headers, body),) = hook.heard
    assert path == "/hook?x=1"
    assert "X-Portal-Signature" not in headers
    assert headers["X-Portal-Delivery"]
    return headers, body


@pytest.fixture
def outside(settings):
    settings.PORTAL_URL = "https://gpu.example.org"


@pytest.mark.once
def test_slack_gets_text_in_which_only_our_link_is_one(alice, hook, outside):
    headers, body = sent_to_chat(alice, hook, "slack")
    assert headers["Content-Type"] == "application/json"
    got = json.loads(body)
    assert set(got) == {"text"}
    assert "&lt;!channel&gt;" in got["text"]
    assert got["text"].endswith("<https://gpu.example.org/jobs/7/|Open>")


@pytest.mark.once
def test_mattermost_gets_markdown_that_mentions_nobody(alice, hook, outside):
    _, body = sent_to_chat(alice, hook, "mattermost")
    got = json.loads(body)
    assert got["username"] == "GPU Portal"
    assert "@all" not in got["text"] and "\\[click\\](https" in got["text"]
    assert got["text"].endswith("[Open](https://gpu.example.org/jobs/7/)")


@pytest.mark.once
def test_teams_gets_an_adaptive_card(alice, hook, outside):
    _, body = sent_to_chat(alice, hook, "teams")
    got = json.loads(body)
    assert got["type"] == "message"
    (attachment,) = got["attachments"]
    assert attachment["contentType"] == "application/vnd.microsoft.card.adaptive"
    card = attachment["content"]
    assert (card["type"], card["version"]) == ("AdaptiveCard", "1.4")
    title, line = card["body"]
    assert title["text"] == "GPU Portal"
    assert line["wrap"] is True
    assert line["text"].endswith("[Open](https://gpu.example.org/jobs/7/)")


@pytest.mark.once
def test_matrix_gets_text_and_escaped_html(alice, hook, outside):
    _, body = sent_to_chat(alice, hook, "matrix")
    got = json.loads(body)
    assert set(got) == {"username", "text", "html"}
    assert got["text"].endswith("https://gpu.example.org/jobs/7/")
    assert "<!channel>" not in got["html"]
    assert "@room" not in got["text"] and "@room" not in got["html"]
    assert '<a href="https://gpu.example.org/jobs/7/">Open</a>' in got["html"]


def test_ntfy_gets_plain_text_with_a_title_and_a_link(alice, hook, outside):
    headers, body = sent_to_chat(alice, hook, "ntfy")
    assert headers["Content-Type"].startswith("text/plain")
    assert headers["Title"] == "GPU Portal"
    assert headers["Click"] == "https://gpu.example.org/jobs/7/"
    assert HOSTILE in body.decode()


@pytest.mark.once
def test_a_long_digest_fits_into_one_chat_message(alice, hook):
    preferences.set_webhook(user=alice, url=hook.url, now=NOW, format_name="ntfy")
    for number in range(40):
        told(alice, "job_done", key=str(number), text="ü" * 300, job=number)
    assert delivery.due(now=NOW)["sent"] == 40
    ((_, headers, body),) = hook.heard
    assert len(body) <= 4096
    assert "Click" not in headers, "the site has no address of its own here"
    hook.heard.clear()
    preferences.set_webhook(user=alice, url=hook.url, now=NOW, format_name="slack")
    for number in range(40):
        told(alice, "job_done", key=f"b{number}", text="x" * 300, job=number)
    assert delivery.due(now=NOW)["sent"] == 40
    ((_, _, body),) = hook.heard
    text = json.loads(body)["text"]
    assert len(text) < 4000
    assert text.splitlines()[-1].startswith("And ")


def test_a_chat_that_is_down_is_tried_again(alice, hook):
    preferences.set_webhook(user=alice, url=hook.url, now=NOW, format_name="teams")
    hook.answers = [503]
    told(alice, "job_done", text="ready")
    assert delivery.due(now=NOW)["retried"] == 1
    assert delivery.due(now=NOW + 2 * MINUTE)["sent"] == 1
    first, second = hook.heard
    assert first[1]["X-Portal-Delivery"] == second[1]["X-Portal-Delivery"]
