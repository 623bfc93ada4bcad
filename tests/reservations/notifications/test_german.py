"""The texts for a person who chose German: refusals, notices, mails, messages,
pages.
"""

import html
import re

import polib
import pytest
from django.conf import settings as site
from django.test import Client
from django.utils import timezone

from reservations.models import Notice
from reservations.notifications import delivery
from reservations.notifications.queries import notices_to_send, notices_with_text
from reservations.notifications.service import notify
from reservations.rules.errors import GpuTaken
from tests.reservations.calling import BASE, Caller, wish
from tests.reservations.conftest import NOW
from tests.reservations.notifications.outside import smtp

TAGS = re.compile(r"<(script|style).*?</\1>|<[^>]*>", re.DOTALL)


@pytest.fixture
def german(alice):
    """Let Alice read German."""
    alice.language = "de"
    alice.save()
    return alice


@pytest.fixture
def page(german):
    """Return a browser of Alice."""
    client = Client()
    client.force_login(german)
    return client


def english_left(body: str) -> list[str]:
    """Return the sentences of a page that have a German translation and are English."""
    text = " ".join(html.unescape(TAGS.sub("\n", body)).split())
    catalogue = polib.pofile(
        str(site.BASE_DIR / "gpuportal/locale/de/LC_MESSAGES/django.po")
    )
    return [
        entry.msgid
        for entry in catalogue
        if entry.msgid.count(" ") > 2
        and not re.search(r"[{%<]", entry.msgid)
        and entry.msgstr != entry.msgid
        and " ".join(entry.msgid.split()) in text
    ]


@pytest.mark.django_db
def test_a_refusal_is_in_the_language_of_its_reader(gpus, german, bob, hour, page):
    Caller(bob)("POST", "/reservations", wish(gpus[:1], hour))
    path, body = f"{BASE}/reservations", wish(gpus[:1], hour)
    answer = page.post(path, body, content_type="application/json")
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "gpu-taken")
    assert problem["title"] == "GPU belegt"
    assert re.search(
        r"ist von (Mo|Di|Mi|Do|Fr|Sa|So) \d+\. \w+ \d\d:\d\d bis .* von Bob belegt\.",
        problem["detail"],
    )
    # A program that names no language reads English, whatever its owner reads.
    english = Caller(bob)("POST", "/reservations", wish(gpus[:1], hour)).body
    assert english["title"] == "GPU taken"
    assert " is taken " in english["detail"]


@pytest.mark.django_db
def test_a_wrong_field_is_named_in_german(page, gpus):
    body = {"gpu_ids": "x", "start": 1}
    answer = page.post(f"{BASE}/reservations", body, content_type="application/json")
    assert answer.status_code == 422
    assert answer.json()["fields"]["end"] == "Dieses Feld ist nötig."


@pytest.mark.django_db
def test_a_notice_is_stored_as_numbers_and_read_in_any_language(german, page):
    detail = {"reason": "nobody came", "charged_gpu_seconds": 3600}
    notify(user=german, kind="released", detail=detail, now=NOW)
    shown = page.get("/notices/").content.decode()
    assert "wurde freigegeben, weil nichts darauf lief" in shown
    assert "Bisher berechnet: 1 Credit." in shown
    stored = Notice.objects.get()
    assert stored.detail["reason"] == "nobody came"
    (english,) = notices_with_text([stored], german)
    assert english.text.startswith("Your booking ")
    (sent,) = notices_to_send([stored], german)
    assert sent.title == "Deine GPUs wurden freigegeben"
    assert type(sent.text) is str
    listed = page.get(f"{BASE}/notices").json()["notices"]
    assert listed[0]["text"].startswith("Deine Reservierung ")


@pytest.mark.once
@pytest.mark.django_db(transaction=True)
def test_a_mail_is_in_the_language_of_its_reader(german, bob, settings):
    for user in (german, bob):
        user.email = f"{user.username}@example.org"
        user.save()
    with smtp(settings) as postman:
        for user in (german, bob):
            notify(user=user, kind="released", detail={"reason": "idle"}, now=NOW)
        delivery.due(now=NOW)
        letters = {to[0]: letter for to, letter in postman.mails}
    mine, theirs = letters["alice@example.org"], letters["bob@example.org"]
    assert mine["Subject"] == "[GPU Portal] Deine GPUs wurden freigegeben"
    text = mine.get_content()
    assert "weil sie nach der Warnung ungenutzt blieb" in text
    assert "Mails dieser Art beenden: https://" in text
    assert theirs["Subject"] == "[GPU Portal] Your GPUs were released"
    assert "End mails of this kind: https://" in theirs.get_content()


@pytest.mark.django_db
def test_a_message_outlives_the_redirect_in_german(page, german):
    answer = page.post("/notices/read/", follow=True)
    assert "0 Meldungen als gelesen markiert." in answer.content.decode()


@pytest.mark.django_db
def test_the_error_of_a_form_is_in_german(page):
    answer = page.post("/me/notices/choose/", {"quiet_from": "22:00"})
    assert answer.status_code == 422
    assert "Gib beide Zeiten ein, oder lass beide leer." in answer.content.decode()


@pytest.mark.django_db
def test_pages_leave_no_sentence_in_english(page, german, gpus, hour):
    call = Caller(german)
    made = call("POST", "/reservations", wish(gpus[:1], hour)).body
    notify(user=german, kind="trial", detail={}, now=timezone.now())
    found = {}
    for path in (
        f"/reservations/{made['id']}/",
        "/standing/",
        "/notices/",
        "/me/notices/",
        "/waiting/",
        "/offers/",
        "/series/",
    ):
        answer = page.get(path, follow=True)
        assert answer.status_code == 200, path
        if left := english_left(answer.content.decode()):
            found[path] = left
    assert found == {}


@pytest.mark.once
@pytest.mark.django_db
def test_an_operators_pages_leave_no_sentence_in_english(omar, gpus):
    omar.language = "de"
    omar.save()
    client = Client()
    client.force_login(omar)
    found = {}
    for path in (
        "/manage/",
        "/manage/gpus/",
        "/manage/pools/",
        "/manage/closures/",
        "/manage/policy/booking/",
        "/manage/accounts/",
        "/manage/courses/",
        "/manage/replay/",
        "/manage/reports/",
    ):
        answer = client.get(path, follow=True)
        if answer.status_code == 404:
            found[path] = ["404"]
        elif left := english_left(answer.content.decode()):
            found[path] = left
    assert found == {}


def test_an_error_that_leaves_its_thread_keeps_its_words():
    error = GpuTaken(gpu="a/0", start=NOW, end=NOW, user="Bob")
    assert str(error) == "a/0 is taken by Bob from Mon 2 Mar 09:00 to Mon 2 Mar 09:00."
