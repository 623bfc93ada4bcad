"""Plain sentences for values that a schema refuses.

pydantic reports each wrong value as a type ("missing", "int_parsing") with the bounds
that it broke (``ctx``) and an English sentence for programmers. People get the
sentences below instead. The types are listed in pydantic's documentation, "Validation
errors".
"""

from collections.abc import Iterable, Mapping
from typing import Any

from telemetry.protocol.sentences import sentence

UNKNOWN = sentence("This value cannot be used here.")
_WHOLE = sentence("This must be a whole number.")
_NUMBER = sentence("This must be a number.")
_TRUTH = sentence("This must be true or false.")
_TEXT = sentence("This must be text.")
_LIST = sentence("This must be a list.")
_OBJECT = sentence("This must be a JSON object.")
_DATE = sentence("This must be a date, such as 2026-11-21.")
_INSTANT = sentence(
    "This must be a date and a time with its zone, such as 2026-11-21T14:00:00Z."
)
_TIME = sentence("This must be a time of day, such as 14:00.")
_LENGTH = sentence("This must be a length of time in seconds.")
_KINDS = {
    "int": _WHOLE,
    "float": _NUMBER,
    "decimal": _NUMBER,
    "finite": _NUMBER,
    "bool": _TRUTH,
    "string": _TEXT,
    "bytes": _TEXT,
    "list": _LIST,
    "tuple": _LIST,
    "set": _LIST,
    "iterable": _LIST,
    "dict": _OBJECT,
    "mapping": _OBJECT,
    "model": _OBJECT,
    "datetime": _INSTANT,
    "timezone": _INSTANT,
    "date": _DATE,
    "time": _TIME,
}
"""First word of an error's type to its sentence."""
_EXACT = {
    "missing": sentence("This field is needed."),
    "extra_forbidden": sentence("There is no such field here."),
    "time_delta_type": _LENGTH,
    "time_delta_parsing": _LENGTH,
    "none_required": sentence("This must be null."),
    "finite_number": sentence("The number must be finite."),
    "json_invalid": sentence("This is not valid JSON."),
    "json_type": sentence("This must be JSON as text."),
    "string_pattern_mismatch": sentence("This does not have the required form."),
    "uuid_parsing": sentence("This must be a UUID."),
    "url_parsing": sentence("This must be an address, such as https://example.org/."),
}
_BOUNDS = {
    "greater_than": ("gt", sentence("This must be more than {bound}.")),
    "greater_than_equal": ("ge", sentence("This must be {bound} or more.")),
    "less_than": ("lt", sentence("This must be less than {bound}.")),
    "less_than_equal": ("le", sentence("This must be {bound} or less.")),
    "multiple_of": ("multiple_of", sentence("This must be a multiple of {bound}.")),
    "string_too_short": (
        "min_length",
        sentence("This needs {bound} characters or more."),
    ),
    "string_too_long": (
        "max_length",
        sentence("This may have {bound} characters at most."),
    ),
    "too_short": ("min_length", sentence("This needs {bound} entries or more.")),
    "too_long": ("max_length", sentence("This may have {bound} entries at most.")),
    "enum": ("expected", sentence("This must be one of: {bound}.")),
    "literal_error": ("expected", sentence("This must be one of: {bound}.")),
}
"""Type to the bound's name in ``ctx`` and the sentence around it."""


def field_sentence(error: Mapping[str, Any]) -> str:
    """Return the fault of one value in a sentence.

    Args:
        error: an entry of ``ValidationError.errors()``: type, msg, ctx.

    >>> field_sentence({"type": "extra_forbidden"})
    'There is no such field here.'
    >>> field_sentence({"type": "int_parsing"})
    'This must be a whole number.'
    >>> field_sentence({"type": "less_than_equal", "ctx": {"le": 1000000.0}})
    'This must be 1,000,000 or less.'
    >>> field_sentence({"type": "value_error", "ctx": {"error": "the year is odd"}})
    'The year is odd.'
    """
    kind = str(error.get("type", ""))
    context = error.get("ctx") or {}
    if kind in ("value_error", "assertion_error"):
        # The portal's own validators have sentences for people.
        return _as_sentence(str(context.get("error", ""))) or UNKNOWN
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return (
            sentence(words, bound=_figure(context[name]))
            if name in context
            else UNKNOWN
        )
    return _EXACT.get(kind) or _KINDS.get(kind.partition("_")[0], UNKNOWN)


def field_sentences(
    errors: Iterable[Mapping[str, Any]], *, skip: int = 0
) -> dict[str, str]:
    """Return field to sentence, the first error of each.

    Args:
        errors: as ``ValidationError.errors()`` lists them.
        skip: how many parts of a place come before the field's name.

    >>> field_sentences([{"type": "missing", "loc": ("body", "new", "name")}], skip=2)
    {'name': 'This field is needed.'}
    """
    found: dict[str, str] = {}
    for error in errors:
        place = [str(part) for part in error["loc"]]
        name = ".".join(place[skip:] or place[-1:])
        found.setdefault(name, field_sentence(error))
    return found


def _figure(bound: object) -> str:
    if isinstance(bound, bool) or not isinstance(bound, int | float):
        return str(bound)
    return f"{int(bound):,}" if bound == int(bound) else f"{bound:,}"


def _as_sentence(text: str) -> str:
    if text[:1].isupper() and text.endswith((".", "?")):
        return text
    text = text.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text.endswith((".", "?")) else ".")
