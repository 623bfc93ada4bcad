"""The pages of Notices: list, filter, paging, and how one is told."""

from datetime import timedelta

import pytest
from django.test import Client

from reservations.models import Notice, NoticeSettings
from reservations.notifications.service import notify
from tests.reservations.conftest import NOW

pytestmark = pytest.mark.django_db


def browser(user):
    client = Client()
    client.force_login(user)
    return client


def test_the_list_filters_pages_and_is_put_away_whole(alice, bob, client):
    for number in range(28):
        kind = "job_done" if number % 4 else "job_failed"
        detail = {"text": f"Job {number}.", "job": number}
        notify(
            user=alice, kind=kind, detail=detail, now=NOW + timedelta(minutes=number)
        )
    mine = browser(alice)
    first = mine.get("/notices/").content.decode()
    assert "28 unread" in first and "page 1 of 2, 28 notices" in first
    assert "Job 27." in first and "Job 2." not in first
    assert 'href="/jobs/27/"' in first
    failed = mine.get("/notices/?kind=job_failed").content.decode()
    assert "7 notices" in failed and "Job 4." in failed and "Job 5." not in failed
    odd = mine.get("/notices/?kind=pigeon&page=x").content.decode()
    assert "was not understood" in odd
    assert "28 unread notices" in mine.get("/bell").content.decode()
    assert "No notice yet" in browser(bob).get("/notices/").content.decode()
    assert browser(bob).post("/notices/read/").status_code == 302
    assert Notice.objects.unread(alice).count() == 28
    assert mine.post("/notices/read/").status_code == 302
    assert Notice.objects.unread(alice).count() == 0
    assert "No notice matches" in mine.get("/notices/?unread=on").content.decode()


def test_one_chooses_kinds_ways_and_quiet_hours(alice, settings):
    mine = browser(alice)
    page = mine.get("/me/notices/").content.decode()
    assert "Mail is off: this site has no mail server" in page
    settings.MAIL_CONFIGURED = True
    assert (
        "your mail address is not known here"
        in mine.get("/me/notices/").content.decode()
    )
    half = mine.post("/me/notices/choose/", {"quiet_from": "22:00"})
    assert half.status_code == 422 and "Enter both times" in half.content.decode()
    wrong = mine.post("/me/notices/choose/", {"mail": "pigeon"})
    assert wrong.status_code == 422
    wanted = {
        "mail": ["released", "job_done"],
        "webhook": ["released"],
        "quiet_from": "22:00",
        "quiet_until": "07:00",
    }
    assert mine.post("/me/notices/choose/", wanted).status_code == 302
    kept = NoticeSettings.objects.get(user=alice)
    assert kept.chosen["job_done"] == ["mail"]
    assert kept.chosen["displaced"] == []
    assert "released" not in kept.chosen, "both ways is what it is by itself"
    assert str(kept.quiet_from) == "22:00:00"
    page = mine.get("/me/notices/").content.decode()
    assert 'value="22:00' in page
    assert mine.post("/me/notices/mute/", {"hours": "8"}).status_code == 302
    assert "Muted until" in mine.get("/me/notices/").content.decode()
    assert mine.post("/me/notices/mute/", {"hours": "7"}).status_code == 404
    mine.post("/me/notices/mute/", {"hours": "0"})
    assert NoticeSettings.objects.get(user=alice).muted_until is None


@pytest.mark.once
def test_a_webhook_leads_nowhere_inside_and_its_secret_is_shown_once(alice, settings):
    mine = browser(alice)
    for url, why in (
        ("http://hooks.example.org/", "must begin with https://"),
        # One sentence for all: two would tell which names the institute's DNS knows.
        ("https://127.0.0.1/", "The portal cannot call 127.0.0.1. The host"),
        ("https://localhost:8010/", "The portal cannot call localhost. The host"),
        ("https://[::ffff:169.254.169.254]/", "The portal cannot call ::ffff:"),
        ("https://nobody.invalid/", "The portal cannot call nobody.invalid. The host"),
        ("https://192.0.0.192/", "The portal cannot call 192.0.0.192. The host"),
        ("", "required"),
    ):
        answer = mine.post("/me/notices/webhook/", {"act": "set", "url": url})
        assert answer.status_code == 422
        assert why in answer.content.decode(), url
    settings.WEBHOOK_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    answer = mine.post(
        "/me/notices/webhook/", {"act": "set", "url": "https://127.0.0.1/x"}
    )
    assert "whsec_" in answer.content.decode()
    assert "no-store" in answer["Cache-Control"]
    assert "whsec_" not in mine.get("/me/notices/").content.decode()
    assert mine.post("/me/notices/try/").status_code == 302
    assert "A test message, sent by you" in mine.get("/me/notices/").content.decode()
    assert Notice.objects.get().deliveries.get().channel == "webhook"
    mine.post("/me/notices/webhook/", {"act": "drop"})
    kept = NoticeSettings.objects.get()
    assert (kept.webhook_url, kept.webhook_nonce) == ("", "")
    assert mine.post("/me/notices/webhook/", {"act": "enable"}).status_code == 404


def test_a_chat_is_chosen_saved_without_a_secret_and_removed(alice, settings):
    mine = browser(alice)
    settings.WEBHOOK_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    chat = {"act": "set", "url": "https://127.0.0.1/x", "format": "mattermost"}
    inside = mine.post(
        "/me/notices/webhook/", chat | {"url": "https://10.1.2.3/hooks/x"}
    )
    assert inside.status_code == 422, "the guard is the same for chats"
    assert mine.post("/me/notices/webhook/", chat).status_code == 302
    page = mine.get("/me/notices/").content.decode()
    assert '<option value="mattermost" selected>' in page
    assert "whsec_" not in page
    odd = mine.post("/me/notices/webhook/", chat | {"format": "pigeon"})
    assert odd.status_code == 422
    mine.post("/me/notices/webhook/", {"act": "drop"})
    assert NoticeSettings.objects.get().webhook_format == "portal"
