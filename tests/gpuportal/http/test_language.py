"""The language of pages: whose choice counts, how it is stored, and its effect."""

import json
from datetime import timedelta

import pytest
from django.conf import settings
from django.template import Context, Template
from django.test import Client
from django.utils import formats, timezone, translation

from gpuportal.board.board_snapshot import (
    audience_key,
    holders_message,
    load_board,
    viewer_of,
)
from gpuportal.http.socket_language import SocketLanguage
from reservations.notifications.reader_locale import language_of, with_language_of
from tests.factories import make_gpus, make_reservation

pytestmark = pytest.mark.django_db
GERMAN = {"HTTP_ACCEPT_LANGUAGE": "de-DE,de;q=0.9,en;q=0.5"}


def language(page) -> str:
    """Return what a page says that it is written in."""
    text = page.content.decode()
    written = text.split('<html lang="', 1)[1].split('"', 1)[0]
    assert page.headers["Content-Language"] == written
    return written


def test_a_visitor_reads_what_their_browser_asks_for(client):
    assert language(client.get("/login/")) == "en"
    page = client.get("/login/", **GERMAN)
    assert language(page) == "de"
    assert "Accept-Language" in page.headers["Vary"]
    assert language(client.get("/login/", HTTP_ACCEPT_LANGUAGE="fr, xx;q=0.1")) == "en"
    assert language(client.get("/login/", HTTP_ACCEPT_LANGUAGE="en-GB")) == "en"
    # Nothing is left for the next request in this thread.
    assert translation.get_language() == settings.LANGUAGE_CODE


def test_a_visitor_chooses_in_the_footer(client):
    assert b'name="language" value="de"' in client.get("/login/").content
    answer = client.post(
        "/language/",
        {"language": "de"},
        HTTP_REFERER="http://testserver/login/?next=/jobs/",
    )
    assert answer.url == "/login/?next=/jobs/"
    cookie = answer.cookies[settings.LANGUAGE_COOKIE_NAME]
    assert (cookie["httponly"], cookie["samesite"]) == (True, "Lax")
    page = client.get("/login/")
    assert language(page) == "de"
    assert b'name="language" value="en"' in page.content


def test_a_users_choice_is_kept_and_counts_before_the_browsers(client, alice):
    client.force_login(alice)
    assert client.post("/language/", {"language": "de"}).url == "/me/"
    alice.refresh_from_db()
    assert alice.language == "de"
    elsewhere = Client(HTTP_ACCEPT_LANGUAGE="en-GB")
    elsewhere.force_login(alice)
    page = elsewhere.get("/me/")
    assert language(page) == "de"
    assert '<option value="de" lang="de" selected>' in page.content.decode()
    # Pages without a view, too.
    assert language(elsewhere.get("/no/such/page/")) == "de"
    client.post("/language/", {"language": ""})
    alice.refresh_from_db()
    assert alice.language == ""
    assert language(client.get("/me/")) == "en"
    assert language(client.get("/me/", **GERMAN)) == "de"


@pytest.mark.once
@pytest.mark.parametrize("code", ["fr", "de-xx", "../../etc/passwd", "x" * 400])
def test_a_language_that_is_not_offered_is_refused(client, alice, code):
    refused = client.post("/language/", {"language": code}, follow=True)
    assert "Choose a language from the list." in refused.content.decode() or (
        len(code) > 16
    )
    assert settings.LANGUAGE_COOKIE_NAME not in client.cookies
    client.force_login(alice)
    answer = client.post("/language/", {"language": code})
    assert answer.status_code == 422
    assert 'id="id_language" name="language"' in answer.content.decode()
    assert 'aria-invalid="true"' in answer.content.decode()
    alice.refresh_from_db()
    assert alice.language == ""


def test_an_address_alone_changes_nothing_and_leads_nowhere_else(alice):
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    assert client.get("/language/?language=de").status_code == 405
    assert client.post("/language/", {"language": "de"}).status_code == 403
    alice.refresh_from_db()
    assert alice.language == ""
    away = Client().post(
        "/language/", {"language": "de"}, HTTP_REFERER="https://evil.example/login/"
    )
    assert away.url == "/login/"


def test_a_cookie_that_is_no_language_is_ignored(client):
    client.cookies[settings.LANGUAGE_COOKIE_NAME] = "../x"
    assert language(client.get("/login/")) == "en"


def test_a_choice_that_is_no_longer_offered_falls_back(client, alice):
    alice.language = "tlh"
    alice.save()
    client.force_login(alice)
    assert language(client.get("/me/")) == "en"
    assert language_of(alice) == settings.LANGUAGE_CODE


def test_mails_and_notices_are_made_in_the_language_of_their_reader(alice):
    alice.language = "de"
    with with_language_of(alice):
        assert translation.gettext("Save") == "Speichern"
    assert translation.gettext("Save") == "Save"


def test_figures_have_a_point_and_inputs_read_their_dates_in_every_language():
    for code, _name in settings.LANGUAGES:
        with translation.override(code):
            assert formats.localize(1234.5) == "1234.5"
            assert "%Y-%m-%d" in formats.get_format("DATE_INPUT_FORMATS")
    with translation.override("de"):
        assert formats.get_format("DATE_INPUT_FORMATS")[0] == "%Y-%m-%d"


@pytest.mark.parametrize(
    ("user_language", "headers", "expected"),
    [
        ("", [], "en"),
        ("", [(b"accept-language", b"de")], "de"),
        ("", [(b"cookie", b"django_language=de")], "de"),
        ("de", [(b"accept-language", b"en")], "de"),
    ],
)
async def test_a_socket_speaks_the_language_of_its_reader(
    user_language, headers, expected
):
    heard = []

    async def consumer(scope, receive, send):
        heard.append(translation.get_language())

    class Reader:
        language = user_language

    scope = {"type": "websocket", "user": Reader(), "headers": headers}
    await SocketLanguage(consumer)(scope, None, None)
    assert heard == [expected]
    assert translation.get_language() == settings.LANGUAGE_CODE


def test_a_sentence_of_a_template_is_kept_by_language_and_escaped_as_written():
    page = Template(
        "{% load i18n %}{% translate 'Save' %} {% translate '3 % < 4' %}"
        "{% translate 'Save' as word %} {{ word }} {% translate name %}"
    )
    for code, word in [("en", "Save"), ("de", "Speichern"), ("en", "Save")] * 2:
        with translation.override(code):
            shown = page.render(Context({"name": "<b>"}))
        assert shown == f"{word} 3 % < 4 {word} &lt;b&gt;"


def test_the_boards_message_is_made_for_each_language_of_a_holder(alice, bob):
    now = timezone.now()
    hour = timedelta(hours=1)
    make_reservation(alice, make_gpus(1), now - hour / 60, now + hour, state="active")
    board = load_board(now)

    def told(user, code):
        viewer = viewer_of(user, names_visible=True)
        with translation.override(code):
            return audience_key(board, viewer), holders_message(board, viewer)

    english, german = told(alice, "en"), told(alice, "de")
    assert "Not started yet" in english[1]
    (held,) = json.loads(german[1])["holders"].values()
    assert held["looming"]["text"] == "Noch nicht begonnen"
    assert english[0] != german[0]
    # Viewers who read no sentence share one message in every language.
    assert told(bob, "en") == told(bob, "de")
