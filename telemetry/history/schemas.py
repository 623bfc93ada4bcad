"""The query parameters of telemetry's addresses."""

from typing import Literal, Self

from ninja import Schema
from pydantic import ConfigDict, Field, model_validator

from telemetry.protocol.message import LATEST_AT
from telemetry.rules.chart_series import DAY_SECONDS, MOST_POINTS

MOST_SECONDS = 3 * 366 * DAY_SECONDS
"""Longest chart: more than the default retention of hours."""


class HistoryIn(Schema):
    """The time of a history: the last hours, or from one Unix second to another."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    hours: float = Field(24, gt=0, le=MOST_SECONDS / 3600)
    start: int | None = Field(None, alias="from", ge=0, le=int(LATEST_AT))
    end: int | None = Field(None, alias="to", ge=0, le=int(LATEST_AT))
    points: int = Field(720, ge=1, le=MOST_POINTS)
    format: Literal["json", "csv"] = "json"

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.end is not None and self.start is None:
            raise ValueError("to needs from")
        if self.start is not None and self.end is not None:
            if self.end <= self.start:
                raise ValueError("to must be after from")
            if self.end - self.start > MOST_SECONDS:
                raise ValueError("from and to are more than three years apart")
        return self
