"""The site's booking rules, as the admin edits them, with history."""

from dataclasses import fields

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from simple_history.models import HistoricalRecords

from reservations.domain.policy import (
    LONGEST_POSSIBLE_SECONDS,
    Policy,
    PolicyInvalid,
)

HOUR = 3600


class SitePolicy(models.Model):
    """One row. Defaults: POLICY.md section 2; all times in seconds."""

    grid_seconds = models.PositiveIntegerField(
        default=HOUR, validators=[MinValueValidator(60), MaxValueValidator(24 * HOUR)]
    )
    firm_horizon_seconds = models.PositiveIntegerField(default=14 * 24 * HOUR)
    flex_horizon_seconds = models.PositiveIntegerField(default=3 * 24 * HOUR)
    freeze_seconds = models.PositiveIntegerField(default=12 * HOUR)
    longest_seconds = models.PositiveIntegerField(
        default=24 * HOUR,
        validators=[MinValueValidator(60), MaxValueValidator(LONGEST_POSSIBLE_SECONDS)],
    )
    gpus_at_once = models.PositiveSmallIntegerField(default=4)
    live_reservations = models.PositiveSmallIntegerField(default=6)
    future_flex = models.PositiveSmallIntegerField(
        default=2, help_text="Flex reservations of one person that have not begun."
    )
    quota_gpu_seconds = models.BigIntegerField(
        default=40 * HOUR * 10,
        help_text="Per Membership, weighted GPU-seconds in any rolling 7 days.",
    )
    half_life_seconds = models.PositiveIntegerField(default=14 * 24 * HOUR)
    late_return_ratio = models.FloatField(
        default=0.5, validators=[MinValueValidator(0), MaxValueValidator(1)]
    )
    no_show_seconds = models.PositiveIntegerField(default=15 * 60)
    idle_seconds = models.PositiveIntegerField(default=30 * 60)
    idle_grace_seconds = models.PositiveIntegerField(
        default=10 * 60, help_text="From the warning to the release."
    )
    idle_util_pct = models.FloatField(
        default=3, validators=[MinValueValidator(0), MaxValueValidator(100)]
    )
    release_no_shows = models.BooleanField(default=True)
    release_idle = models.BooleanField(default=False)
    lost_seconds = models.PositiveIntegerField(
        default=10 * 60, help_text="A Gpu lost for longer refunds its reservation."
    )
    planned_requests = models.PositiveSmallIntegerField(
        default=5, help_text="So many waiting requests hold a planned start."
    )
    waiting_requests = models.PositiveSmallIntegerField(
        default=5, help_text="Requests of one person that may wait at a time."
    )
    stop_grace_seconds = models.PositiveIntegerField(default=30)
    names_visible = models.BooleanField(
        default=True, help_text="Students see who holds a Gpu; off: groups only."
    )

    history = HistoricalRecords()

    class Meta:
        verbose_name_plural = "site policy"

    def __str__(self) -> str:
        return "Site policy"

    def clean(self) -> None:
        """Refuse rules that contradict each other.

        Raises:
            ValidationError: on the field that is wrong.
        """
        try:
            self.to_policy()
        except PolicyInvalid as invalid:
            raise ValidationError({invalid.field: invalid.why}) from invalid

    def to_policy(self) -> Policy:
        """Return the rules as the frozen value that decisions take.

        Raises:
            PolicyInvalid: the row contradicts itself.
        """
        same = {
            field.name: getattr(self, field.name)
            for field in fields(Policy)
            if field.name != "late_return_permille"
        }
        return Policy(**same, late_return_permille=round(self.late_return_ratio * 1000))

    @classmethod
    def current(cls) -> "SitePolicy":
        """Return the one row, made with the defaults where it is missing."""
        return cls.objects.filter(pk=1).first() or cls.objects.get_or_create(pk=1)[0]
