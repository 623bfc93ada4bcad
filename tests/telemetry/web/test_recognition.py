"""English texts from the database, shown in the reader's language."""

import polib
import pytest
from django.utils import translation

from telemetry.protocol.sentences import joined, sentence
from telemetry.web import recognition
from telemetry.web.recognition import shown, shown_values

GERMAN = {
    "done": "fertig",
    "the GPUs of {node}": "die GPUs von {node}",
    "waits for job {job}, which uses {uses} until {end}": (
        "wartet bis {end} auf Job {job}, der {uses} benutzt"
    ),
    "{first} to {last}": "{first} bis {last}",
    "{gpu} layers {ranges}": "{gpu} Schichten {ranges}",
    "{first} and {second}": "{first} und {second}",
    "The model is cut: {cut}.": "Das Modell ist geteilt: {cut}.",
    "Moves to {place}.": "Zieht um nach {place}.",
    "Not done automatically: choose first.": "Nicht automatisch: wähle zuerst.",
    "must be a whole number": "muss eine ganze Zahl sein",
    "Sat": "Sa",
    "Oct": "Okt",
    "{weekday} {day} {month}": "{weekday} {day}. {month}",
    "{day} {month} {year}": "{day}. {month} {year}",
    "{weekday} {day} {month} {time}": "{weekday} {day}. {month} {time}",
    "It waits until {until}.": "Er wartet bis {until}.",
}


@pytest.fixture(autouse=True)
def german(tmp_path, settings):
    """A catalogue of these sentences alone."""
    made = polib.POFile()
    made.metadata = {"Content-Type": "text/plain; charset=UTF-8"}
    made.extend(polib.POEntry(msgid=k, msgstr=v) for k, v in GERMAN.items())
    folder = tmp_path / "de" / "LC_MESSAGES"
    folder.mkdir(parents=True)
    made.save_as_mofile(str(folder / "django.mo"))
    settings.LOCALE_PATHS = [tmp_path]
    for cached in (recognition._shown, recognition._templates):
        cached.cache_clear()
    with translation.override("de"):
        yield
    for cached in (recognition._shown, recognition._templates):
        cached.cache_clear()


def test_a_stored_text_is_found_with_its_values():
    uses = sentence("the GPUs of {node}", node="lab-a")
    live = sentence(
        "waits for job {job}, which uses {uses} until {end}",
        job=7,
        uses=uses,
        end="14:00",
    )
    stored = live.plain()
    assert shown(stored) == "wartet bis 14:00 auf Job 7, der die GPUs von lab-a benutzt"


def test_ranges_inside_of_others_are_found():
    said = "The model is cut: lab-a:0 layers 0 to 5 and 12 to 17."
    assert shown(said) == (
        "Das Modell ist geteilt: lab-a:0 Schichten 0 bis 5 und 12 bis 17."
    )


def test_several_sentences_are_found_one_by_one():
    stored = joined(
        [
            sentence("Moves to {place}.", place="lab-b:0"),
            sentence("Not done automatically: choose first."),
        ]
    ).plain()
    assert shown(stored) == "Zieht um nach lab-b:0. Nicht automatisch: wähle zuerst."


@pytest.mark.parametrize(
    ("stored", "wanted"),
    [
        ("It waits until Sat 3 Oct 08:30.", "Er wartet bis Sa 3. Okt 08:30."),
        ("Sat 31 Oct", "Sa 31. Okt"),
        ("31 Oct 2026", "31. Okt 2026"),
        ("Sat 3 Oct to Sat 31 Oct 08:30", "Sat 3 Oct to Sat 31 Oct 08:30"),
        ("Try 3 Ohm", "Try 3 Ohm"),
    ],
)
def test_days_are_found_alone_and_in_sentences(stored, wanted):
    assert shown(stored) == wanted


def test_a_capital_at_the_beginning_is_kept():
    assert shown("Must be a whole number") == "Muss eine ganze Zahl sein"


@pytest.mark.parametrize(
    "text", ["my first run to the end and back", "", "x" * 3000, "tea to go and cake"]
)
def test_texts_of_people_stay_as_they_are(text):
    assert shown(text) == text


def test_english_readers_see_what_is_stored():
    with translation.override("en"):
        assert shown("done") == "done"


def test_only_the_named_fields_are_translated():
    facts = {"state": "done", "events": [{"reason": "done", "state": "done"}]}
    assert shown_values(facts, ["reason"]) == {
        "state": "done",
        "events": [{"reason": "fertig", "state": "done"}],
    }
