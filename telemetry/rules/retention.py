"""How long each tier of samples is kept (docs/design/telemetry.md#storage).

Raw samples lie in the broker's memory, so their time is bounded by it; minutes
and hours lie in the database. Summaries are kept for ever and have no number.
"""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.rules.chart_series import DAY_SECONDS

RAW_MOST_SECONDS = 3600
RAW_LEAST_SECONDS = 300
"""An ingest that was down reads again what is still there."""
MINUTE_LEAST_DAYS = 2
"""Idleness, summaries and the charts of a day are counted from minutes."""
MINUTE_MOST_DAYS = 400
HOUR_MOST_DAYS = 3660


@dataclass(frozen=True, slots=True)
class RetentionTimes:
    """How long raw samples, minutes and hours stay."""

    raw_seconds: int = RAW_MOST_SECONDS
    minute_days: int = 30
    hour_days: int = 731

    @property
    def minute_seconds(self) -> int:
        """How long minutes stay, in seconds."""
        return self.minute_days * DAY_SECONDS
