"""Sentences are plain English strings that remember what they were made of."""

import copy
import json
import pickle

import pytest

from telemetry.protocol.sentences import Sentence, counted, joined, sentence

pytestmark = pytest.mark.pure


def test_a_sentence_is_the_plain_string() -> None:
    made = sentence("{gpu} is taken by {user}.", gpu="a/0", user="ann")
    plain = "a/0 is taken by ann."
    assert made == plain
    assert hash(made) == hash(plain)
    assert {plain: 1}[made] == 1
    assert json.dumps({"detail": made}) == '{"detail": "a/0 is taken by ann."}'
    assert made.template == "{gpu} is taken by {user}."
    assert made.values == {"gpu": "a/0", "user": "ann"}
    assert type(made.plain()) is str


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy])
def test_a_copy_keeps_template_and_values(again) -> None:
    inner = counted("{n} GPU", "{n} GPUs", 2)
    made = sentence("You hold {what}.", what=inner)
    for found in (again(made), pickle.loads(pickle.dumps(made))):
        assert found == "You hold 2 GPUs."
        assert isinstance(found, Sentence)
        assert found.template == made.template
        assert isinstance(found.values["what"], Sentence)
        assert found.values["what"].many == "{n} GPUs"


def test_an_exception_keeps_its_sentence() -> None:
    error = ValueError(sentence("{n} is too much.", n=3))
    found = str(error)
    assert isinstance(found, Sentence)
    assert found.values == {"n": 3}


@pytest.mark.parametrize(
    ("n", "words"), [(1, "1 GPU"), (0, "0 GPUs"), (2, "2 GPUs"), (1.5, "1.5 GPUs")]
)
def test_the_number_chooses_the_form(n, words) -> None:
    assert counted("{n} GPU", "{n} GPUs", n) == words


def test_a_value_may_format_the_number_itself() -> None:
    assert counted("{n} hour", "{n} hours", 1200, n="1,200") == "1,200 hours"


def test_braces_in_a_value_stay() -> None:
    assert sentence("Title: {title}", title="{evil} {0}") == "Title: {evil} {0}"
    assert sentence("Write {day} in it.") == "Write {day} in it."


def test_a_missing_value_is_an_error() -> None:
    with pytest.raises(KeyError):
        sentence("{gpu} is taken by {user}.", gpu="a/0")


def test_parts_are_joined_without_the_empty_ones() -> None:
    made = joined([sentence("One."), "", "Two."])
    assert made == "One. Two."
    assert joined(["a", "b"], by="} {") == "a} {b"
    assert joined([]) == ""


def test_a_page_gets_it_escaped() -> None:
    made = sentence("Title: {title}", title="<b>")
    assert made.__html__() == "Title: &lt;b&gt;"
