"""Totals of Gpus by minute and by hour, and the hours that are due.

They have counts and sums, never means, so a roll-up of roll-ups stays exact.
"""

from collections.abc import Iterator
from typing import Any

from django.db import models
from django.db.models import Max, Min, Sum
from django.utils.translation import gettext_lazy

from telemetry.models.nodes import Gpu, Pool
from telemetry.rules.rollup import MinuteTotals

ADDED_UP = {
    "n": Sum,
    "util_n": Sum,
    "util_sum_pct": Sum,
    "util_min_pct": Min,
    "util_max_pct": Max,
    "idle_n": Sum,
    "memory_n": Sum,
    "memory_sum_bytes": Sum,
    "memory_max_bytes": Max,
    "temperature_max_celsius": Max,
    "power_n": Sum,
    "power_sum_watts": Sum,
    "process_n": Sum,
    "energy_joules": Sum,
}
"""How each column of a MinuteTotals adds up. SQL ignores NULL, so gaps stay gaps."""


class TotalsQuerySet(models.QuerySet[Any]):
    """Reads of rows that carry totals."""

    def added_up(self, *by: str) -> Iterator[tuple[tuple[Any, ...], MinuteTotals]]:
        """Yield the totals over the rows for each value of `by`, added up by the
        database."""
        sums = {f"total_{name}": how(name) for name, how in ADDED_UP.items()}
        rows = self.order_by().values_list(*by).annotate(**sums)
        for row in rows.iterator(chunk_size=2000):
            values = dict(zip(ADDED_UP, row[len(by) :], strict=True))
            yield row[: len(by)], MinuteTotals(**values)


class SampleMinute(models.Model):
    """One Gpu's minute: counts and sums, so that roll-ups stay exact."""

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="minutes")
    minute_at = models.DateTimeField()
    n = models.PositiveSmallIntegerField()
    util_n = models.PositiveSmallIntegerField()
    util_sum_pct = models.FloatField()
    util_max_pct = models.FloatField(null=True)
    util_min_pct = models.FloatField(null=True)
    idle_n = models.PositiveSmallIntegerField(default=0)
    memory_n = models.PositiveSmallIntegerField()
    memory_sum_bytes = models.FloatField()
    memory_max_bytes = models.BigIntegerField(null=True)
    temperature_max_celsius = models.FloatField(null=True)
    power_n = models.PositiveSmallIntegerField()
    power_sum_watts = models.FloatField()
    process_n = models.PositiveSmallIntegerField(
        default=0, help_text="Samples with at least one process of the holder."
    )
    energy_joules = models.FloatField(
        null=True, help_text="By the Gpu's counter, else power x time; empty: unknown."
    )

    objects = TotalsQuerySet.as_manager()

    class Meta:
        ordering = ["minute_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["gpu", "minute_at"], name="one_row_per_gpu_and_minute"
            )
        ]
        indexes = [models.Index(fields=["minute_at"])]

    def __str__(self) -> str:
        return f"{self.gpu_id} {self.minute_at:%F %R}"


class HourTotals(models.Model):
    """The columns of a SampleMinute, added up over an hour."""

    hour_at = models.DateTimeField(help_text="Begin of the hour, UTC.")
    n = models.PositiveIntegerField()
    util_n = models.PositiveIntegerField()
    util_sum_pct = models.FloatField()
    util_max_pct = models.FloatField(null=True)
    util_min_pct = models.FloatField(null=True)
    idle_n = models.PositiveIntegerField()
    memory_n = models.PositiveIntegerField()
    memory_sum_bytes = models.FloatField()
    memory_max_bytes = models.BigIntegerField(null=True)
    temperature_max_celsius = models.FloatField(null=True)
    power_n = models.PositiveIntegerField()
    power_sum_watts = models.FloatField()
    process_n = models.PositiveIntegerField()
    energy_joules = models.FloatField(null=True)

    objects = TotalsQuerySet.as_manager()

    class Meta:
        abstract = True


class SampleHour(HourTotals):
    """One Gpu's hour, rolled up from its minutes. It outlives them."""

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="hours")

    class Meta:
        ordering = ["hour_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["gpu", "hour_at"], name="one_row_per_gpu_and_hour"
            )
        ]
        indexes = [models.Index(fields=["hour_at"])]

    def __str__(self) -> str:
        return f"{self.gpu_id} {self.hour_at:%F %R}"


class AccountHour(HourTotals):
    """Totals of the Gpus of one Pool in an hour while one Account held them.

    `account_id` belongs to the calendar. Telemetry only stores it. Hours in which the
    Account held nothing have no row.
    """

    account_id = models.BigIntegerField()
    pool = models.ForeignKey(Pool, on_delete=models.CASCADE, related_name="+")
    held_seconds = models.PositiveIntegerField(help_text="Gpus x seconds held.")

    class Meta:
        ordering = ["hour_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["account_id", "pool", "hour_at"],
                name="one_row_per_account_pool_and_hour",
            )
        ]
        indexes = [models.Index(fields=["hour_at"])]

    def __str__(self) -> str:
        return f"account {self.account_id} {self.hour_at:%F %R}"


class HourDue(models.Model):
    """An hour whose minutes have changed since it was rolled up.

    Code that stores minutes writes it in the same transaction. The roll-up of the hour
    deletes it in the same transaction. So late minutes are never forgotten.
    """

    class Tier(models.TextChoices):
        GPU = "gpu", "hours of Gpus"
        ACCOUNT = "account", "hours of Accounts"

    tier = models.CharField(max_length=8, choices=Tier)
    hour_at = models.DateTimeField()
    changed_at = models.DateTimeField()

    class Meta:
        verbose_name = gettext_lazy("hour due")
        verbose_name_plural = gettext_lazy("hours due")
        ordering = ["hour_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["tier", "hour_at"], name="one_due_row_per_tier_and_hour"
            )
        ]

    def __str__(self) -> str:
        return f"{self.tier} {self.hour_at:%F %R}"
