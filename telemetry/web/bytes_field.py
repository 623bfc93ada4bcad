"""A size that a person types as "100 GiB", stored in bytes."""

import re
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext

from telemetry.protocol.units import exact_bytes

_TYPED = re.compile(r"([0-9]{1,19}(?:[.,][0-9]{1,6})?)\s*([kKMGTP]?i?B?)")
_STEPS = "KMGTP"
MOST_BYTES = 2**62


def read_bytes(text: str) -> int:
    """Read a size as people type it. A plain number is in bytes.

    Raises:
        ValueError: it is no size, or no whole number of bytes.

    >>> read_bytes("100 GiB"), read_bytes("1.5 GB"), read_bytes("90")
    (107374182400, 1500000000, 90)
    """
    found = _TYPED.fullmatch(text.strip())
    if found is None or found[2] in ("i", "iB"):
        raise ValueError(text)
    figure, unit = found[1].replace(",", "."), found[2].upper()
    power = _STEPS.index(unit[0]) + 1 if unit[:1] in set(_STEPS) else 0
    step = (1024 if "I" in unit else 1000) ** power
    whole, _, part = figure.partition(".")
    scale = 10 ** len(part)
    size_bytes, rest = divmod(int(whole + part) * step, scale)
    if rest and not power:
        raise ValueError(text)
    return size_bytes


class BytesField(forms.Field):
    """A size in bytes, shown and typed with a unit."""

    def __init__(
        self, *, least: float | None = 0, most: float | None = None, **kwargs: Any
    ) -> None:
        self.least = int(least or 0)
        self.most = MOST_BYTES if most is None else int(most)
        super().__init__(**kwargs)

    def prepare_value(self, value: Any) -> Any:
        """Return stored bytes with their unit. Typed text stays as typed."""
        return exact_bytes(value) if isinstance(value, int) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        """Return whether another size was typed."""
        try:
            return bool(self.to_python(data) != initial)
        except ValidationError:
            return True

    def to_python(self, value: Any) -> int | None:
        """Return bytes.

        Raises:
            ValidationError: not a size, or outside the limits.
        """
        if value in self.empty_values:
            return None
        try:
            size_bytes = read_bytes(str(value)[:80])
        except ValueError as error:
            raise ValidationError(
                gettext("Enter a size, such as “100 GiB” or “500 MB”.")
            ) from error
        if not self.least <= size_bytes <= self.most:
            raise ValidationError(
                gettext("Choose between %(least)s and %(most)s.")
                % {"least": exact_bytes(self.least), "most": exact_bytes(self.most)}
            )
        return size_bytes
