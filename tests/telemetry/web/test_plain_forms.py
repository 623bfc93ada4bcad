"""Errors of forms for people: limits, control characters, checkboxes, sizes, clocks."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from django import forms
from django.utils import timezone

from telemetry.web.bytes_field import BytesField, read_bytes
from telemetry.web.local_time_field import LocalTimeField, clock_notes
from telemetry.web.plain_forms import PlainForm

pytestmark = pytest.mark.pure


class EveryKind(PlainForm):
    ratio = forms.FloatField(min_value=0, max_value=1, required=False)
    name = forms.CharField(required=False)
    text = forms.CharField(widget=forms.Textarea, required=False)
    password = forms.CharField(widget=forms.PasswordInput, required=False)
    on = forms.BooleanField(required=False)
    size = BytesField(most=10 * 2**40, required=False)
    at = LocalTimeField(required=False)


def errors(**data: str) -> dict[str, list[str]]:
    """Return the errors of a form with one valid or invalid value by field."""
    return dict(EveryKind(data).errors)


@pytest.mark.parametrize("typed", ["NaN", "abc", "½", "-0.1", "1.5", "inf"])
def test_a_fraction_is_not_asked_for_as_a_whole_number(typed):
    assert errors(ratio=typed) == {"ratio": ["Enter a number from 0 to 1."]}


@pytest.mark.parametrize("wrong", ["a\u202eb", "a\u2066", "a\x07b", "\x1b[31m"])
def test_no_text_turns_the_text_around_it(wrong):
    said = ["Control characters are not allowed."]
    assert errors(name=wrong, text=wrong) == {"name": said, "text": said}
    assert not errors(text="two\nlines\tand a tab", name="Zoë שלום 🙂")
    assert not errors(password=wrong)


@pytest.mark.parametrize("typed", ["maybe", "off", "0", "no"])
def test_a_checkbox_is_on_or_absent(typed):
    assert errors(on=typed) == {"on": ["Enter “on”, or leave it out."]}
    for fine, value in (("on", True), ("", False), ("False", False)):
        form = EveryKind({"on": fine})
        assert form.is_valid()
        assert form.cleaned_data["on"] is value


def test_a_size_is_typed_with_its_unit():
    form = EveryKind(initial={"size": 107374182400})
    assert form["size"].value() == "100 GiB"
    assert (read_bytes("1.5 TiB"), read_bytes("7")) == (3 * 2**39, 7)
    for wrong in ("", "GiB", "1.5", "10 iB", "10 XB", "-1 GiB", "１0 GiB", "nan"):
        with pytest.raises(ValueError):
            read_bytes(wrong)
    assert errors(size="much") == {
        "size": ["Enter a size, such as “100 GiB” or “500 MB”."]
    }
    assert errors(size="11 TiB") == {"size": ["Choose between 0 B and 10 TiB."]}
    kept = EveryKind({"size": "100 GiB"}, initial={"size": 107374182400})
    assert "size" not in kept.changed_data


def test_the_hour_of_the_clock_change_is_read_or_refused_in_words():
    with timezone.override(ZoneInfo("Europe/Berlin")):
        twice = EveryKind({"at": "2026-10-25T02:30"})
        assert twice.is_valid()
        assert twice.cleaned_data["at"] == datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
        assert clock_notes(twice) == [
            "The clock is put back on 2026-10-25, so 02:30 comes twice. The first one "
            "counts."
        ]
        assert errors(at="2027-03-28T02:30") == {
            "at": [
                "The clock is put forward on this day, so 02:30 does not exist. Choose "
                "01:59 or earlier, or 03:00 or later."
            ]
        }
        plain = EveryKind({"at": "2026-10-26T02:30"})
        assert plain.is_valid()
        assert clock_notes(plain) == []
        assert errors(at="soon") == {
            "at": ["Enter a date and a time, such as 2026-11-21 14:00."]
        }
