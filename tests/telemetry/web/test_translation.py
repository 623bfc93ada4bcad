"""Sentences of the domain reach people in their language, through one door."""

import pytest
from django import forms
from django.core.exceptions import ValidationError
from django.template import Context, Template
from django.utils.html import format_html

from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import counted, joined, sentence
from telemetry.web import translation
from telemetry.web.error_answers import problem_of
from telemetry.web.translation import translated, translated_values

GERMAN = {
    "{gpu} is taken by {user}.": "{user} hat {gpu}.",
    "You hold {what}.": "Du hältst {what}.",
    "Taken": "Vergeben",
    "Broken {here}": "Kaputt {there}",
}


@pytest.fixture
def german(monkeypatch):
    """Let the active language be German, with the few sentences above."""
    monkeypatch.setattr(translation, "get_language", lambda: "de")
    monkeypatch.setattr(translation, "gettext", lambda text: GERMAN.get(text, text))
    monkeypatch.setattr(
        translation,
        "ngettext",
        lambda one, many, n: f"{{n}} {'Karte' if n == 1 else 'Karten'}",
    )


TAKEN = sentence("{gpu} is taken by {user}.", gpu="a/0", user="<ann>")


@pytest.mark.usefixtures("german")
def test_the_values_move_to_their_places() -> None:
    assert translated(TAKEN) == "<ann> hat a/0."
    assert type(translated(TAKEN)) is str


@pytest.mark.usefixtures("german")
def test_sentences_within_sentences_and_plurals() -> None:
    held = sentence("You hold {what}.", what=counted("{n} GPU", "{n} GPUs", 2))
    assert translated(held) == "Du hältst 2 Karten."
    assert translated(joined([held, TAKEN])) == "Du hältst 2 Karten. <ann> hat a/0."


@pytest.mark.usefixtures("german")
def test_what_is_no_sentence_stays() -> None:
    assert translated("Taken") == "Taken"
    assert translated(sentence("")) == ""
    assert translated(sentence("Unknown {x}", x=1)) == "Unknown 1"


@pytest.mark.usefixtures("german")
def test_a_wrong_translation_falls_back_to_english() -> None:
    assert translated(sentence("Broken {here}", here=1)) == "Broken 1"


def test_english_stays_english() -> None:
    assert translated(TAKEN) == "a/0 is taken by <ann>."
    assert type(translated(TAKEN)) is str


@pytest.mark.usefixtures("german")
def test_a_page_shows_it_in_the_readers_language() -> None:
    page = Template("{% load portal %}{{ text }}").render(Context({"text": TAKEN}))
    assert page == "&lt;ann&gt; hat a/0."
    mail = Template(
        "{% load portal %}{% autoescape off %}{{ t|translated }}{% endautoescape %}"
    )
    assert mail.render(Context({"t": TAKEN})) == "<ann> hat a/0."
    assert format_html("<p>{}</p>", TAKEN) == "<p>&lt;ann&gt; hat a/0.</p>"


@pytest.mark.usefixtures("german")
def test_a_form_shows_it_beside_the_field() -> None:
    class Booking(forms.Form):
        gpu = forms.CharField()

        def clean_gpu(self) -> str:
            raise ValidationError(str(ValueError(TAKEN)))

    assert "&lt;ann&gt; hat a/0." in Booking({"gpu": "x"}).as_p()


@pytest.mark.usefixtures("german")
def test_problem_details_are_translated_and_numbers_are_not() -> None:
    found = problem_of(
        RequestRefused(
            "invalid",
            TAKEN,
            title=sentence("Taken"),
            fields={"gpu": TAKEN},
            numbers={"why": TAKEN},
        )
    )
    assert found["title"] == "Vergeben"
    assert found["detail"] == "<ann> hat a/0."
    assert found["fields"] == {"gpu": "<ann> hat a/0."}
    assert found["numbers"] == {"why": "a/0 is taken by <ann>."}


@pytest.mark.usefixtures("german")
def test_json_ready_data_is_translated_in_depth() -> None:
    data = {"rows": [{"why": TAKEN, "n": 1}, (TAKEN, None)], "name": "Taken"}
    assert translated_values(data) == {
        "rows": [{"why": "<ann> hat a/0.", "n": 1}, ["<ann> hat a/0.", None]],
        "name": "Taken",
    }
