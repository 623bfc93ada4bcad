"""Find JSON values that a database cannot store, anywhere in a document.

PostgreSQL refuses a null character in any text and NaN in any JSON column; neither
database takes half of a surrogate pair. A document that is nested deeper than any of
ours would exhaust the stack of the code that walks it.
"""

from collections.abc import Iterator
from math import isfinite

from telemetry.protocol.sentences import joined, sentence

MOST_DEPTH = 64
"""Most nested lists and objects. The deepest document of the portal has 8."""


class JsonTooDeep(ValueError):
    """The document is nested deeper than ``MOST_DEPTH``."""


def unstorable(value: object) -> dict[str, str]:
    """Return the faults of a document's values, by the path of each.

    Raises:
        JsonTooDeep: it is nested too deeply.

    >>> unstorable({"job": {"name": "a", "arguments": ["nul" + chr(0)]}})
    {'job.arguments.0': 'Null characters are not allowed.'}
    >>> unstorable({"hours": float("nan"), "plan": None})
    {'hours': 'The number must be finite.'}
    """
    return dict(_invalid_values(value, (), 0))


def _invalid_values(
    value: object, path: tuple[str, ...], depth: int
) -> Iterator[tuple[str, str]]:
    if depth > MOST_DEPTH:
        raise JsonTooDeep(
            sentence("nested more than {most} levels deep", most=MOST_DEPTH)
        )
    if isinstance(value, str):
        if wrong := text_problem(value):
            yield ".".join(path), wrong
    elif isinstance(value, float) and not isfinite(value):
        yield ".".join(path), sentence("The number must be finite.")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _invalid_values(item, (*path, str(index)), depth + 1)
    elif isinstance(value, dict):
        for name, item in value.items():
            if wrong := text_problem(name):
                yield (
                    ".".join(path),
                    joined([sentence("The name of a field is wrong."), wrong]),
                )
            else:
                yield from _invalid_values(item, (*path, name), depth + 1)


def text_problem(text: str) -> str:
    """Return why a text cannot be stored; "" if it can.

    >>> text_problem("half of a pair: " + chr(0xD800))
    'The text must be valid Unicode.'
    """
    if "\0" in text:
        return sentence("Null characters are not allowed.")
    try:
        text.encode()
    except UnicodeEncodeError:
        return sentence("The text must be valid Unicode.")
    return ""
