"""Base of the planner's values: converted to JSON and back, strictly."""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from placement.planner.values.errors import BadInput, SpecInvalid
from telemetry.protocol.codec import Malformed, read, to_plain


class JsonValue:
    """Base of frozen dataclasses that are stored or sent as JSON."""

    __slots__ = ()

    refusal: ClassVar[type[BadInput]] = SpecInvalid
    """The error that ``from_json`` raises."""

    def to_json(self) -> dict[str, Any]:
        """Return the plain dict that ``from_json`` reads back to an equal value."""
        return to_plain(self)  # type: ignore[no-any-return]

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Read the result of ``to_json``. Raises ``refusal`` for anything else."""
        try:
            return read(cls, data)
        except Malformed as error:
            raise cls.refusal({error.field or cls.__name__: error.why}) from None
