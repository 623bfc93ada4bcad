"""Characters that no text of a person may contain."""

import unicodedata

_CONTROLS = frozenset({"Cc", "Zl", "Zp"})
"""Categories of control characters and of separators of lines and paragraphs."""
_TURNS = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Bidirectional controls: they reorder the text around them."""
_LAYOUT = frozenset("\t\n\r")


def has_controls(text: str, *, layout: bool = False) -> bool:
    r"""Return whether a text has control characters or bidirectional controls.

    Args:
        layout: whether tabs and line breaks are allowed.

    >>> has_controls("Zoë"), has_controls("a\u202eb"), has_controls("a\nb", layout=True)
    (False, True, False)
    """
    return any(
        (unicodedata.category(char) in _CONTROLS or char in _TURNS)
        and not (layout and char in _LAYOUT)
        for char in text
    )
