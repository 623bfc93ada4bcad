"""Sentences that can be translated later, where the reader is known.

Domain code does not know who reads a sentence. It returns a ``Sentence``: a string in
English that remembers the template and the values that it was made of. Programs, JSON
and the database see the English string. ``telemetry.web.translation.translated`` looks
the template up in the reader's language and fills the values in again.

``makemessages`` finds the templates by the names ``sentence`` and ``counted``.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping


class Sentence(str):
    """An English text with the template and the values that it was made of.

    It is equal to the same plain string and has the same hash. What string methods
    return (``+``, ``join``, ``strip``) is a plain string and stays English: nest
    sentences as values, or use ``joined``.

    Templates print it in the reader's language, because they call ``__html__``.
    """

    __slots__ = ("many", "number", "template", "values")

    template: str
    """The text with its values as ``{name}``. For a plural, the form for one thing."""
    values: Mapping[str, object]
    """The values by name. A value may be a Sentence; it is translated too."""
    many: str
    """The form for several things; empty where the sentence has no plural."""
    number: float
    """What decides between the two forms."""

    def __new__(
        cls,
        template: str,
        values: Mapping[str, object] | None = None,
        many: str = "",
        number: float = 1,
    ) -> Sentence:
        """Return the English text. A template without values is taken as it is.

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
        """Return what ``pickle`` and ``copy`` make the same sentence from."""
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
        values: what the template names, formatted as it is to be shown.

    Raises:
        KeyError: the template names a value that is not given.

    >>> sentence("{gpu} is taken.", gpu="node-a/0")
    'node-a/0 is taken.'
    """
    return Sentence(template, values)


def counted(one: str, many: str, n: float, /, **values: object) -> Sentence:
    """Return a sentence about a number of things that can be translated.

    Args:
        one: the English text where ``n`` is 1.
        many: the English text for every other number.
        n: the number. The template sees it as ``{n}``, unless ``values`` has an ``n``.
        values: what else the templates name.

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
        by: what is put between two parts. A Sentence is translated too.

    >>> joined([sentence("It is taken."), "", sentence("Choose another.")])
    'It is taken. Choose another.'
    """
    values = {f"part{number}": part for number, part in enumerate(filter(None, parts))}
    template = "{gap}".join(f"{{{name}}}" for name in values)
    return Sentence(template, {**values, "gap": by})


def known(text: str) -> Sentence:
    """Return a stored text as a sentence.

    Fixed words that the portal stored (a reason, a cause) are translated, because the
    same words are marked with ``sentence`` where they are stored. What a person typed
    has no translation and stays as it is.
    """
    return Sentence(text)


def _english(text: Sentence) -> str:
    return text.plain()


_reader: Callable[[Sentence], str] = _english


def set_reader(translate: Callable[[Sentence], str]) -> None:
    """Set what ``Sentence.__html__`` translates with. The Django side calls it once."""
    global _reader
    _reader = translate
