"""Sentences that can be translated later, when the reader is known.

Domain code does not know the reader of a sentence. It returns a ``Sentence``: an
English string that keeps its template and its values. Programs, JSON and the database
see the English string. ``telemetry.web.translation.translated`` looks the template up
in the reader's language and fills in the values.

``makemessages`` finds the templates by the names ``sentence`` and ``counted``.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping


class Sentence(str):
    """An English text with its template and its values.

    It is equal to the same plain string and has the same hash. The results of string
    methods (``+``, ``join``, ``strip``) are plain strings and stay English. Nest
    sentences as values, or use ``joined``.

    Templates print it in the reader's language, because they call ``__html__``.
    """

    __slots__ = ("many", "number", "template", "values")

    template: str
    """The text with its values as ``{name}``. For a plural, the form for one thing."""
    values: Mapping[str, object]
    """The values by name. A value may be a Sentence, which is translated too."""
    many: str
    """The form for several things; empty if the sentence has no plural."""
    number: float
    """The number that selects one of the two forms."""

    def __new__(
        cls,
        template: str,
        values: Mapping[str, object] | None = None,
        many: str = "",
        number: float = 1,
    ) -> Sentence:
        """Return the English text. A template without values is returned unchanged.

        Raises:
            KeyError: the template names a value that is not given.
        """
        values = values or {}
        words = many if many and number != 1 else template
        self = super().__new__(cls, words.format_map(values) if values else words)
        self.template = template
        self.values = values
        self.many = many
        self.number = number
        return self

    def __reduce__(self) -> tuple[type[Sentence], tuple[object, ...]]:
        """Return the arguments from which ``pickle`` and ``copy`` make the same
        sentence.
        """
        return Sentence, (self.template, self.values, self.many, self.number)

    def __str__(self) -> str:
        """Return the sentence itself, so that ``str(error)`` can be translated."""
        return self

    def plain(self) -> str:
        """Return the English text as a plain string."""
        return str.__str__(self)

    def __html__(self) -> str:
        """Return the text for a page, in the reader's language and escaped."""
        return html.escape(_reader(self))


def sentence(template: str, /, **values: object) -> Sentence:
    """Return a sentence that can be translated.

    Args:
        template: the English text, with its values as ``{name}``.
        values: the values of the template, formatted for display.

    Raises:
        KeyError: the template names a value that is not given.

    >>> sentence("{gpu} is taken.", gpu="node-a/0")
    'node-a/0 is taken.'
    """
    return Sentence(template, values)


def counted(one: str, many: str, n: float, /, **values: object) -> Sentence:
    """Return a sentence about a number of things that can be translated.

    Args:
        one: the English text for ``n`` = 1.
        many: the English text for every other number.
        n: the number. The template sees it as ``{n}``, unless ``values`` has an ``n``.
        values: the other values of the templates.

    Raises:
        KeyError: the template names a value that is not given.

    >>> counted("{n} GPU", "{n} GPUs", 1), counted("{n} GPU", "{n} GPUs", 2)
    ('1 GPU', '2 GPUs')
    """
    return Sentence(one, {"n": n, **values}, many, n)


def joined(parts: Iterable[str], by: str = " ") -> Sentence:
    """Return several texts as one that can be translated part by part.

    Args:
        parts: plain strings or sentences. Empty ones are left out.
        by: the text between two parts. A Sentence is translated too.

    >>> joined([sentence("It is taken."), "", sentence("Choose another.")])
    'It is taken. Choose another.'
    """
    values = {f"part{number}": part for number, part in enumerate(filter(None, parts))}
    template = "{gap}".join(f"{{{name}}}" for name in values)
    return Sentence(template, {**values, "gap": by})


def known(text: str) -> Sentence:
    """Return a stored text as a sentence.

    Fixed words that the portal stored (a reason, a cause) are translated, because the
    same words are marked with ``sentence`` in the code that stores them. A text that a
    person typed has no translation and is not changed.
    """
    return Sentence(text)


def _english(text: Sentence) -> str:
    return text.plain()


_reader: Callable[[Sentence], str] = _english


def set_reader(translate: Callable[[Sentence], str]) -> None:
    """Set the function with which ``Sentence.__html__`` translates. The Django side
    calls it once.
    """
    global _reader
    _reader = translate
