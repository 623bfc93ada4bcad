"""Recognise texts that the database keeps in English as sentences.

The reason of an ended job, the notes of a saved plan and similar texts are stored in
English alone, because programs read them. A page shows them to a reader of another
language. This module finds the template and the values of such a text among the
translated templates.
"""

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import polib
from django.conf import settings
from django.utils.translation import get_language, gettext, ngettext, to_locale

from telemetry.protocol.sentences import Sentence
from telemetry.web.translation import translated

FIELD = re.compile(r"\{([a-z_][a-z0-9_]*)\}")
CLEAR_LETTERS, CLEAR_BEGINNING = 8, 4
"""A template with fewer letters outside of its fields, or before the first field, could
match texts of people, for example "{first} to {last}". It counts only inside another
template, and its values must be single words or recognised texts.
"""
DAY_FIELDS = {
    "weekday": "Mon|Tue|Wed|Thu|Fri|Sat|Sun",
    "day": r"\d{1,2}",
    "month": "Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec",
    "year": r"\d{4}",
    "time": r"\d{2}:\d{2}",
}
"""Patterns of the fields of a date. A template of these fields alone has no letters to
be found by, for example "{weekday} {day} {month} {time}".
"""
SENTENCES = re.compile(r"(?<=\.) (?=[A-Z“])")
JOINTS = tuple(map(re.compile, (r"(?<=\.)( )(?=[A-Z“])", "(; )", "(, )", "(: )")))
"""Separators of texts that ``joined`` put together."""
MOST_CHARACTERS = 700
"""Longer texts are logs or files, not sentences."""
MOST_DEPTH = 4
"""Deepest nesting of sentences in the values of others."""


class KnownTemplate(NamedTuple):
    """A template with fields, and the arguments that look up its translation."""

    template: str
    part: str
    """Its longest part without a field."""
    clear: bool
    """Whether it is a date, or has CLEAR_LETTERS, or CLEAR_BEGINNING at its start."""
    one: str
    """The template for one thing, if it has a plural."""
    number: int
    """The number of things for which the template is used."""


def shown(text: str) -> str:
    """Return a live or a stored text in the active language, as a plain string.

    Args:
        text: a Sentence, or the English text of one. A text of no known template is
            returned unchanged, for example a text of a user.
    """
    language = get_language()
    if isinstance(text, Sentence):
        return translated(text)
    if not isinstance(text, str) or language is None or language.startswith("en"):
        return text
    return _shown(language, str(text), 0)


def shown_values(data: Any, names: Collection[str]) -> Any:
    """Return JSON-ready data with the texts of some fields in the active language.

    Args:
        data: dictionaries and lists are walked through and copied.
        names: the fields whose texts people read. Other fields are not changed, because
            programs compare them.
    """
    if isinstance(data, dict):
        return {
            key: shown(value)
            if key in names and isinstance(value, str)
            else shown_values(value, names)
            for key, value in data.items()
        }
    if isinstance(data, list | tuple):
        return [shown_values(value, names) for value in data]
    return data


@lru_cache(maxsize=4096)
def _shown(language: str, text: str, depth: int) -> str:
    """Return a stored text in a language, which must be the active one."""
    if not text.strip() or len(text) > MOST_CHARACTERS or depth > MOST_DEPTH:
        return text
    found = gettext(text)
    if found != text:
        return found
    each = SENTENCES.split(text)
    if len(each) > 1:
        said = [_shown(language, one, depth) for one in each]
        if all(new != old for new, old in zip(said, each, strict=True)):
            return " ".join(said)
    for one in _templates(language):
        if not (one.clear or depth):
            continue
        match = _pattern(one.template).fullmatch(text) if one.part in text else None
        if match is None:
            continue
        values = match.groupdict()
        told = {
            name: _shown(language, said, depth + 1) for name, said in values.items()
        }
        if one.clear or all(
            told[name] != said or " " not in said for name, said in values.items()
        ):
            form = (
                ngettext(one.one, one.template, one.number)
                if one.one
                else gettext(one.template)
            )
            return form.format_map(told)
    lower = text[:1].lower() + text[1:]
    if lower != text:
        inner = _shown(language, lower, depth)
        if inner != lower:
            return inner[:1].upper() + inner[1:]
    return _part_by_part(language, text, depth)


def _part_by_part(language: str, text: str, depth: int) -> str:
    """Return a text of several sentences, each of them in a language."""
    for gap in JOINTS:
        parts = gap.split(text)
        if len(parts) > 1:
            told = [
                part if at % 2 else _shown(language, part, depth)
                for at, part in enumerate(parts)
            ]
            if told != parts:
                return "".join(told)
    return text


@lru_cache(maxsize=8)
def _templates(language: str) -> tuple[KnownTemplate, ...]:
    """Return the templates with fields, those that begin with a fixed part first.

    Among those the ones with the most fixed letters come first.
    """
    ways: dict[str, tuple[str, int]] = {}
    for folder in settings.LOCALE_PATHS:
        path = Path(folder) / to_locale(language) / "LC_MESSAGES" / "django.mo"
        for entry in polib.mofile(str(path)) if path.is_file() else ():
            one, many = entry.msgid, entry.msgid_plural
            ways[one] = (one, 1) if many else ("", 1)
            if many:
                ways[many] = (one, 2)
    found = []
    for template, (one, number) in ways.items():
        fixed, parts = FIELD.sub("", template), FIELD.split(template)
        letters = sum(letter.isalpha() for letter in fixed)
        dated = _is_date(template)
        if len(parts) > 1 and "{" not in fixed and (letters > 1 or dated):
            begins = sum(letter.isalpha() for letter in parts[0])
            clear = dated or letters >= CLEAR_LETTERS or begins >= CLEAR_BEGINNING
            known = KnownTemplate(
                template, max(parts[::2], key=len), clear, one, number
            )
            found.append(((not parts[0], -letters, template), known))
    return tuple(known for _, known in sorted(found, key=lambda pair: pair[0]))


def _is_date(template: str) -> bool:
    names = set(FIELD.findall(template))
    bare = FIELD.sub("", template).strip(" .,")
    return {"day", "month"} <= names <= DAY_FIELDS.keys() and not bare


@lru_cache(maxsize=2048)
def _pattern(template: str) -> re.Pattern[str]:
    """Return the pattern of the texts of a template."""
    parts = FIELD.split(template)
    forms = DAY_FIELDS if _is_date(template) else {}
    return re.compile(
        "".join(
            re.escape(part) if at % 2 == 0 else _group(part, parts[:at], forms)
            for at, part in enumerate(parts)
        ),
        re.DOTALL,
    )


def _group(name: str, before: list[str], forms: Mapping[str, str]) -> str:
    """Return the pattern of a field. A repeated field must have the same value."""
    if name in before[1::2]:
        return f"(?P={name})"
    return f"(?P<{name}>{forms.get(name, '.+?')})"
