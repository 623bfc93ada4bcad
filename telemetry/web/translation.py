"""The one place where sentences of the domain are translated for the reader.

Pages do nothing: templates, ``format_html`` and the errors of forms call
``Sentence.__html__``, which calls this module. Problem details are translated in
``gpuportal.http.problems``. All other texts that leave the portal (mails, JSON for its
own scripts, messages of Django) go through ``translated``.
"""

import logging
from typing import Any

from django.utils.translation import get_language, gettext, ngettext

from telemetry.protocol.sentences import Sentence

logger = logging.getLogger(__name__)


def translated(text: str) -> str:
    """Return a text in the active language, as a plain string.

    Args:
        text: a Sentence is translated with its values; any other string is returned
            unchanged.
    """
    if not isinstance(text, Sentence):
        return text
    if _is_english():
        return text.plain()
    if not text.template:
        return ""
    template = (
        ngettext(text.template, text.many, _plural_number(text.number))
        if text.many
        else gettext(text.template)
    )
    if not text.values:
        return template
    values = {
        name: translated(value) if isinstance(value, Sentence) else value
        for name, value in text.values.items()
    }
    try:
        return template.format_map(values)
    except (KeyError, IndexError, ValueError):
        logger.warning("the translation of %r cannot be filled in", text.template)
        return text.plain()


def _plural_number(number: float) -> int:
    """Return a number for the plural rule. A fraction counts as several things."""
    return int(number) if number == int(number) else 2


def _is_english() -> bool:
    language = get_language()
    return language is None or language.startswith("en")


def translated_values(data: Any) -> Any:
    """Return JSON-ready data with every sentence in it in the active language.

    In English the data is returned unchanged, because JSON sees a Sentence as its
    English text.

    Args:
        data: dictionaries, lists and tuples are walked through and copied; their keys
            are not changed.
    """
    return data if _is_english() else _translate_nested(data)


def _translate_nested(data: Any) -> Any:
    if isinstance(data, Sentence):
        return translated(data)
    if isinstance(data, dict):
        return {key: _translate_nested(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_translate_nested(value) for value in data]
    return data
