"""The input schemas of the calendar's API. They are strict and bounded."""

from datetime import UTC, datetime
from typing import Annotated

from ninja import Schema
from pydantic import (
    AfterValidator,
    AwareDatetime,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
)

from telemetry.protocol.sentences import sentence
from telemetry.web.printable import has_controls

MOST_GPUS = 64
LARGEST_KEY = 2**62
_FIRST_YEAR, _LAST_YEAR = 2000, 2200


def in_utc(at: datetime) -> datetime:
    """Return an aware instant in UTC, the only zone that every database accepts.

    PostgreSQL refuses offsets beyond 15:59, which ISO 8601 allows.

    Raises:
        ValueError: its year is outside the portal's range.
    """
    if not _FIRST_YEAR <= at.year <= _LAST_YEAR:
        raise ValueError(
            sentence(
                "The year is not between {first} and {last}.",
                first=_FIRST_YEAR,
                last=_LAST_YEAR,
            )
        )
    return at.astimezone(UTC)


def _printable(text: str) -> str:
    if has_controls(text):
        raise ValueError(sentence("Control characters are not allowed."))
    return text.strip()


Instant = Annotated[AwareDatetime, AfterValidator(in_utc)]
"""ISO 8601 with a zone ("2026-11-21T14:00:00Z")."""
Key = Annotated[StrictInt, Field(ge=1, le=LARGEST_KEY)]
GpuIds = Annotated[list[Key], Field(max_length=MOST_GPUS)]
Line = Annotated[str, AfterValidator(_printable)]


class _Strict(Schema):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class BookIn(_Strict):
    """A new Reservation."""

    membership: Key | None = None
    gpu_ids: GpuIds
    start: Instant
    end: Instant
    purpose: Line = Field("", max_length=120)
    voucher: Key | None = None
    """Voucher to spend if the start is beyond a horizon."""
    overstay: StrictBool = False
    """Stay on past the end while nobody claims the Gpus."""


class PreviewIn(BookIn):
    """A new Reservation, or (``ignoring``) the change of an existing one."""

    ignoring: Key | None = None


class ChangeIn(_Strict):
    """The values to change. ``version`` is the one that was shown."""

    start: Instant | None = None
    end: Instant | None = None
    gpu_ids: GpuIds | None = None
    purpose: Line | None = Field(None, max_length=120)
    version: StrictInt
    reason: Line = Field("", max_length=400)


class ReasonIn(_Strict):
    """The reason for an act on behalf of another person."""

    reason: Line = Field("", max_length=400)


class OverstayIn(ReasonIn):
    """Stay on past the end while nobody claims the Gpus, or end that."""

    wanted: StrictBool = True


class SlotsIn(_Strict):
    """The parameters of a search (in the address)."""

    count: int = Field(1, ge=1, le=MOST_GPUS)
    min_memory_gib: float = Field(0, ge=0, le=100_000)
    hours: float = Field(1, gt=0, le=31 * 24)
    gpu_class: str | None = Field(None, max_length=80)
    earliest: Instant | None = None
    latest: Instant | None = None
    membership: int | None = Field(None, ge=1, le=LARGEST_KEY)
    limit: int = Field(3, ge=1, le=20)


class SpanIn(_Strict):
    """The span of the calendar (in the address)."""

    start: Instant
    end: Instant
