"""The rules of a policy, each declared once.

A policy is a frozen dataclass whose fields are made by ``rule``. The declaration has
the default, the meaning, the limits and the group of the page. The unit is the end of
the field's name. The column of the database, the field of the form, the admin and the
history are made from the declaration: see ``telemetry.models.policy_row`` and
``reservations.operations.policy_views``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import UTC, tzinfo
from enum import StrEnum
from typing import Any, TypeVar, cast

from telemetry.protocol.coded_error import FieldsRefused
from telemetry.protocol.sentences import sentence

T = TypeVar("T")
_PERMILLE, _RATIO = "_permille", "_ratio"
PERMILLE = 1000

UNITS = (
    ("_gpu_seconds", sentence("weighted GPU-seconds")),
    ("_seconds", sentence("seconds")),
    ("_days", sentence("days")),
    ("_mib", "MiB"),
    ("_pct", sentence("percent")),
    ("_ratio", sentence("ratio, 0 to 1")),
    ("_samples", sentence("samples")),
)
"""The unit that the end of a rule's name stands for."""


class PolicyInvalid(FieldsRefused):
    """A rule is outside its limits or contradicts another one."""

    code = "policy-invalid"

    def __init__(self, *, field: str, why: str) -> None:
        super().__init__({field: why})

    def text(self, zone: tzinfo = UTC) -> str:
        return f"{self.field} {self.detail}"


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """One declared rule. Limits and default are in the unit of the row."""

    name: str
    """Name of the dataclass's field."""
    default: Any
    label: str
    """Name on screen, without the unit beside it; empty: only the admin shows it."""
    meaning: str
    says_unit: bool = False
    """Whether the meaning itself names the unit and explains 0."""
    shown: str = ""
    """The default in words, such as "14 days"."""
    least: float | None = None
    most: float | None = None
    floor: float | None = None
    """Least value that the dataclass accepts, if code may go below ``least``."""
    group: str = ""
    """Title under which the page shows it; empty: with the other rules."""
    column_label: str = ""
    """Name in the admin; empty: Django makes it from the column's name."""

    @property
    def column(self) -> str:
        """Return the name in the row, which has a ratio where the value has permille.

        >>> PolicyRule("late_return_permille", 500, "", "").column
        'late_return_ratio'
        """
        if self.name.endswith(_PERMILLE):
            return self.name.removesuffix(_PERMILLE) + _RATIO
        return self.name

    @property
    def is_converted(self) -> bool:
        """Return whether the row keeps it in another form than the dataclass."""
        return self.column != self.name or self.kind in ("words", "lines", "choice")

    @property
    def kind(self) -> str:
        """Return how the rule is stored.

        "switch", "choice" (of an enumeration), "words" (codes), "lines" (names),
        "number" or "ratio". A rule whose default is None is a number or empty.
        """
        if self.default is None:
            return "number"
        if isinstance(self.default, StrEnum):
            return "choice"
        if isinstance(self.default, tuple):
            return "words" if isinstance(self.default[0], int) else "lines"
        if isinstance(self.default, bool):
            return "switch"
        whole = isinstance(self.default, int) and self.column == self.name
        return "number" if whole else "ratio"

    @property
    def unit(self) -> str:
        """Return the unit at the end of the row's name; empty: a number or words."""
        return unit_of(self.column)

    @property
    def help(self) -> str:
        """Return the meaning with its unit and, if it is declared, the default."""
        if self.says_unit:
            return self.meaning
        values = {"meaning": self.meaning, "default": self.default}
        if self.shown and self.shown == f"{self.default} s":
            return sentence("{meaning} In seconds; default {default}.", **values)
        if self.shown and self.name.endswith("_gpu_seconds"):
            return sentence(
                "{meaning} In weighted GPU-seconds; default {default} ({shown}).",
                **values,
                shown=self.shown,
            )
        if self.shown and self.name.endswith("_bytes"):
            return sentence(
                "{meaning} In bytes; 0: no limit; default {default} ({shown}).",
                **values,
                shown=self.shown,
            )
        if self.shown:
            return sentence(
                "{meaning} In seconds; default {default} ({shown}).",
                **values,
                shown=self.shown,
            )
        if self.name.endswith("_seconds"):
            return sentence("{meaning} Seconds.", meaning=self.meaning)
        if self.name.endswith("_mib"):
            return sentence("{meaning} MiB.", meaning=self.meaning)
        if self.kind == "words":
            return sentence("{meaning} XID codes.", meaning=self.meaning)
        if self.kind == "number" and not self.unit and not self.name.endswith("_bytes"):
            return sentence("{meaning} A number; default {default}.", **values)
        return self.meaning

    @property
    def typed(self) -> str:
        """Return the meaning for a page on which times are typed as "14 d", and sizes
        as "100 GiB".
        """
        if self.shown and self.name.endswith("_bytes"):
            return sentence(
                "{meaning} 0: no limit. Default: {shown}.",
                meaning=self.meaning,
                shown=self.shown,
            )
        if self.shown:
            return sentence(
                "{meaning} Default: {shown}.", meaning=self.meaning, shown=self.shown
            )
        return self.meaning if self.name.endswith("_seconds") else self.help

    @property
    def row_default(self) -> Any:
        """Return the default in the form of the row."""
        default = self.to_row(self.default)
        return _whole_or_float(default) if self.kind == "ratio" else default

    @property
    def row_limits(self) -> tuple[float | None, float | None]:
        """Return the least and the largest value that the row accepts."""
        if self.kind in ("words", "lines", "choice"):
            return None, None
        if self.column == self.name:
            return self.least, self.most
        return tuple(  # type: ignore[return-value]
            None if end is None else _whole_or_float(end / PERMILLE)
            for end in (self.least, self.most)
        )

    def to_row(self, value: Any) -> Any:
        """Return a value in the form of the row. Codes and names become text."""
        if self.kind == "words":
            return " ".join(str(code) for code in value)
        if self.kind == "lines":
            return "\n".join(value)
        if self.kind == "choice":
            return value.value
        return value if self.column == self.name else value / PERMILLE

    def from_row(self, stored: Any) -> Any:
        """Convert a value of the row.

        Raises:
            PolicyInvalid: it cannot be read.
        """
        if self.kind == "words":
            return parse_codes(stored, field=self.name)
        if self.kind == "lines":
            return parse_names(stored)
        if self.kind == "choice":
            return type(self.default)(stored)
        if self.column == self.name:
            return stored
        if not math.isfinite(stored):
            raise PolicyInvalid(field=self.name, why=sentence("is not a number"))
        return round(stored * PERMILLE)


def _whole_or_float(number: float) -> float:
    return int(number) if number == int(number) else number


def rule(default: T, label: str, meaning: str, **declared: Any) -> T:
    """Return the dataclass field of a rule.

    Args:
        default: its type decides how the rule is stored and typed.
        label: its name on screen.
        meaning: one or two sentences for the person who sets it.
        declared: the other fields of ``PolicyRule``.
    """
    made = field(
        default=default, metadata={"label": label, "meaning": meaning, **declared}
    )
    return cast(T, made)


_RULES: dict[type, tuple[PolicyRule, ...]] = {}


def rules_of(policy: type) -> tuple[PolicyRule, ...]:
    """Return the rules of a policy, in the order in which they are declared."""
    if policy not in _RULES:
        _RULES[policy] = tuple(
            PolicyRule(name=one.name, default=one.default, **one.metadata)
            for one in fields(policy)
            if "meaning" in one.metadata
        )
    return _RULES[policy]


_LIMITS: dict[type, list[tuple[str, float, float]]] = {}
_COLUMNS: dict[type, list[tuple[str, str, Callable[[Any], Any] | None]]] = {}


def check_limits_of(policy: Any) -> None:
    """Check every number of a policy against its declared limits.

    Raises:
        PolicyInvalid: names the first invalid field.
    """
    # Every booking makes a policy: the limits are read from the rules once.
    kind = type(policy)
    if kind not in _LIMITS:
        _LIMITS[kind] = [
            (one.name, one.least if one.floor is None else one.floor, one.most)
            for one in rules_of(kind)
            if one.least is not None and one.most is not None
        ]
    for name, least, most in _LIMITS[kind]:
        value = getattr(policy, name)
        for number in value if type(value) is tuple else (value,):
            if not least <= number <= most:
                check_between(name, number, least, most)


def values_of(policy: type, row: object) -> dict[str, Any]:
    """Return the rules of a policy by name, read from the columns of its row.

    Raises:
        PolicyInvalid: a column cannot be read.
    """
    if policy not in _COLUMNS:
        _COLUMNS[policy] = [
            (one.name, one.column, one.from_row if one.is_converted else None)
            for one in rules_of(policy)
        ]
    return {
        name: read(getattr(row, column)) if read else getattr(row, column)
        for name, column, read in _COLUMNS[policy]
    }


def check_between(name: str, value: float, least: float, most: float) -> None:
    """Refuse a number outside of two limits.

    Raises:
        PolicyInvalid: the number is outside.
    """
    if not math.isfinite(value) or not least <= value <= most:
        raise PolicyInvalid(
            field=name,
            why=sentence("is not between {least} and {most}", least=least, most=most),
        )


def unit_of(name: str) -> str:
    """Return the unit at the end of a name; empty: a plain number or words.

    >>> unit_of("freeze_seconds"), unit_of("gpus_at_once")
    ('seconds', '')
    """
    return next((unit for end, unit in UNITS if name.endswith(end)), "")


def parse_codes(text: str, *, field: str) -> tuple[int, ...]:
    """Return the codes of a text such as "48 62, 64", sorted, each once.

    Raises:
        PolicyInvalid: a word is not a number.
    """
    words = text.replace(",", " ").split()
    for word in words:
        if not (word.isascii() and word.isdecimal() and len(word) < 6):
            raise PolicyInvalid(
                field=field,
                why=sentence("holds {word}, no XID", word=repr(word)[:20]),
            )
    return tuple(sorted({int(word) for word in words}))


def parse_names(text: str) -> tuple[str, ...]:
    """Return the names of a text with one on each line, in order, each once."""
    return tuple(dict.fromkeys(filter(None, map(str.strip, text.splitlines()))))
