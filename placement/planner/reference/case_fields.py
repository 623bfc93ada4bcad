"""Fields of a JSON object as numbers. Every problem is collected before one is raised.

The public cases are written by other people. Their reader reports all problems at once,
which the codec of `telemetry.protocol` does not do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from placement.planner.values.errors import BadInput

LARGEST = 10**60
"""A larger number is a mistake."""
SMALLEST = 1e-60
"""A smaller number is a mistake in a field that must not be 0, because a division by it
would give infinity.
"""


@dataclass(slots=True)
class CaseFields:
    """One object and its problems so far."""

    data: Mapping[str, Any]
    problems: dict[str, str] = field(default_factory=dict)
    path: str = ""

    def check(self) -> None:
        """Raise BadInput if any field was invalid."""
        if self.problems:
            raise BadInput(self.problems)

    def number(self, name: str, *, default: float | None = None) -> float:
        """Return a number from zero up; `default` if it is missing."""
        if name not in self.data and default is not None:
            return default
        return float(self._checked(name, self.data.get(name)))

    @overload
    def whole_number(self, name: str, *, least: int = 0) -> int: ...
    @overload
    def whole_number(
        self, name: str, *, least: int = 0, or_none: Literal[True]
    ) -> int | None: ...
    def whole_number(
        self, name: str, *, least: int = 0, or_none: bool = False
    ) -> int | None:
        """Return a whole number of at least `least`. With `or_none` it may be null."""
        value = self.data.get(name)
        if or_none and name in self.data and value is None:
            return None
        return int(self._checked(name, value, whole=True, least=least))

    def whole_numbers(self, name: str, *, most: int) -> list[int]:
        """Return a list of 1 to `most` whole numbers from zero up."""
        rows = self.rows(name, most=most)
        return [
            int(self._checked(f"{name}[{index}]", value, whole=True))
            for index, value in enumerate(rows)
        ]

    def rows(self, name: str, *, most: int) -> Sequence[Any]:
        """Return a list of 1 to `most` items."""
        value = self.data.get(name)
        if not isinstance(value, list) or not 1 <= len(value) <= most:
            self.problems[self.path + name] = f"must be a list of 1 to {most}"
            return []
        return value

    def _checked(
        self,
        name: str,
        value: object,
        *,
        whole: bool = False,
        least: int = 0,
        above_zero: bool = False,
    ) -> float:
        """Return the number, or `least` with a problem noted."""
        right = (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and least <= value <= LARGEST  # false for NaN
            and (value >= SMALLEST or not above_zero)
            and (not whole or value == int(value))
        )
        if right:
            assert isinstance(value, int | float)
            return value
        kind = "a whole number" if whole else "a number"
        bound = "above 0" if above_zero else f"from {least} up"
        self.problems[self.path + name] = (
            f"must be {kind} {bound}" if value is not None else "is missing"
        )
        return max(least, 1)


def objects_of(fields: CaseFields, name: str, *, most: int) -> list[CaseFields]:
    """Return a list of objects, each with its own path and the same list of
    problems.
    """
    made = []
    for index, row in enumerate(fields.rows(name, most=most)):
        path = f"{name}[{index}]"
        if not isinstance(row, Mapping):
            fields.problems[path] = "must be an object"
            row = {}
        made.append(CaseFields(row, fields.problems, f"{path}."))
    return made


def numbers_of(
    rows: Sequence[CaseFields],
    name: str,
    *,
    whole: bool = False,
    above_zero: bool = False,
) -> list[float]:
    """Return the same field of every object. Whole numbers stay `int` at any size."""
    found = []
    for row in rows:
        value = row._checked(
            name, row.data.get(name), whole=whole, above_zero=above_zero
        )
        found.append(int(value) if whole else value)
    return found
