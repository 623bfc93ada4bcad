"""How long each tier of samples is kept (docs/design/telemetry.md#storage).

Raw samples are in the broker's memory, which bounds their time. Minutes and hours are
in the database. Summaries are kept forever.
"""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.protocol.sentences import sentence
from telemetry.rules.chart_series import DAY_SECONDS
from telemetry.rules.policy_declaration import PolicyInvalid, check_limits_of, rule

RAW_MOST_SECONDS = 3600
RAW_LEAST_SECONDS = 300
"""After a failure, ingest reads again the samples that are still there."""
MINUTE_LEAST_DAYS = 2
"""Idleness, summaries and the charts of a day are computed from minutes."""


@dataclass(frozen=True, slots=True)
class RetentionTimes:
    """How long raw samples, minutes and hours are kept."""

    keep_raw_seconds: int = rule(
        RAW_MOST_SECONDS,
        sentence("keep raw"),
        sentence("How long raw samples stay in the broker."),
        least=RAW_LEAST_SECONDS,
        most=RAW_MOST_SECONDS,
    )
    keep_minute_days: int = rule(
        30,
        sentence("keep minute"),
        sentence("How long a row per GPU and minute is kept. Days."),
        least=MINUTE_LEAST_DAYS,
        most=400,
    )
    keep_hour_days: int = rule(
        731,
        sentence("keep hour"),
        sentence(
            "How long a row per GPU and hour is kept, at least as long as "
            "minutes. Days. Summaries of reservations and jobs are kept forever."
        ),
        least=MINUTE_LEAST_DAYS,
        most=3660,
    )

    def __post_init__(self) -> None:
        """Check every rule, and the rules against each other.

        Raises:
            PolicyInvalid: names the first invalid field.
        """
        check_limits_of(self)
        if self.keep_hour_days < self.keep_minute_days:
            raise PolicyInvalid(
                field="keep_hour_days",
                why=sentence("Hours must be kept as long as minutes at least."),
            )

    @property
    def minute_seconds(self) -> int:
        """How long minutes are kept, in seconds."""
        return self.keep_minute_days * DAY_SECONDS
