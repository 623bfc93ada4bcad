"""The site's booking rules, as the admin edits them, with history."""

import math
from dataclasses import fields
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from simple_history.models import HistoricalRecords

from reservations.rules.policy import LIMITS, Policy, PolicyInvalid
from telemetry.protocol.sentences import sentence

RATIOS = ("late_return_ratio", "free_return_ratio")
"""Fields that the Policy keeps as whole permille."""
HOUR = 3600
DAY = 24 * HOUR


def _limits(name: str) -> list[Any]:
    least, most = LIMITS[name]
    return [MinValueValidator(least), MaxValueValidator(most)]


def _seconds(name: str, default: int, meaning: str, shown: str) -> Any:
    """Return a field of seconds with its meaning, unit, default and limits."""
    return models.PositiveIntegerField(
        default=default,
        validators=_limits(name),
        help_text=sentence(
            "{meaning} In seconds; default {default} ({shown}).",
            meaning=meaning,
            default=default,
            shown=shown,
        ),
    )


def _number(name: str, default: int, meaning: str) -> Any:
    """Return a field that counts, with its meaning, default and limits."""
    return models.PositiveSmallIntegerField(
        default=default,
        validators=_limits(name),
        help_text=sentence(
            "{meaning} A number; default {default}.", meaning=meaning, default=default
        ),
    )


class SitePolicy(models.Model):
    """One row. Defaults: docs/design/fair-booking.md#defaults; all times in seconds."""

    grid_seconds = _seconds(
        "grid_seconds",
        HOUR,
        sentence(
            "Reservations begin and end on multiples of this time. It must divide a "
            "day."
        ),
        "1 h",
    )
    firm_horizon_seconds = _seconds(
        "firm_horizon_seconds",
        14 * DAY,
        sentence("How far ahead a reservation may begin."),
        sentence("14 days"),
    )
    flex_horizon_seconds = _seconds(
        "flex_horizon_seconds",
        3 * DAY,
        sentence("How far ahead a flex reservation may begin."),
        sentence("3 days"),
    )
    freeze_seconds = _seconds(
        "freeze_seconds",
        12 * HOUR,
        sentence(
            "How long before its start nobody can take a flex reservation any more."
        ),
        "12 h",
    )
    longest_seconds = _seconds(
        "longest_seconds",
        DAY,
        sentence(
            "Longest reservation. Reservations of one person that follow each other on "
            "a GPU count as one."
        ),
        "24 h",
    )
    gpus_at_once = _number(
        "gpus_at_once", 4, sentence("GPUs that one person may hold at the same time.")
    )
    live_reservations = _number(
        "live_reservations",
        6,
        sentence("Reservations that one person may have, booked and running together."),
    )
    future_flex = _number(
        "future_flex", 2, sentence("Flex reservations that one person may have ahead.")
    )
    quota_gpu_seconds = models.BigIntegerField(
        default=40 * HOUR * 10,
        validators=_limits("quota_gpu_seconds"),
        help_text=sentence(
            "{meaning} In weighted GPU-seconds; default {default} ({shown}).",
            meaning=sentence(
                "Firm time of one member in any 7 days, unless the membership has its "
                "own quota."
            ),
            default=1_440_000,
            shown=sentence("40 h of a GPU of weight 10"),
        ),
    )
    person_quota_gpu_seconds = models.BigIntegerField(
        default=80 * HOUR * 10,
        validators=_limits("person_quota_gpu_seconds"),
        help_text=sentence(
            "{meaning} In weighted GPU-seconds; default {default} ({shown}).",
            meaning=sentence(
                "Firm time of one person in any 7 days, over all groups together."
            ),
            default=2_880_000,
            shown=sentence("80 h of weight 10"),
        ),
    )
    half_life_seconds = _seconds(
        "half_life_seconds",
        14 * DAY,
        sentence("After this time, past use counts half in fair share."),
        sentence("14 days"),
    )
    late_return_ratio = models.FloatField(
        default=0.5,
        validators=[MinValueValidator(0), MaxValueValidator(1)],
        help_text=sentence(
            "Part of the price that is charged for hours returned less than a "
            "day ahead, unless someone else then holds them. A ratio, 0 to 1; default "
            "0.5."
        ),
    )
    free_return_ratio = models.FloatField(
        default=0.5,
        validators=[MinValueValidator(0), MaxValueValidator(100)],
        help_text=sentence(
            "Part of the quota that a person may return before the start in "
            "14 days, in addition to what they used. A ratio; default 0.5."
        ),
    )
    returned_horizon_seconds = _seconds(
        "returned_horizon_seconds",
        DAY,
        sentence("How far ahead a person may book after returning more than that."),
        "24 h",
    )
    displacement_pause_seconds = _seconds(
        "displacement_pause_seconds",
        DAY,
        sentence(
            "How long a person who displaced a flex reservation and gave the time back "
            "cannot displace the same person again."
        ),
        "24 h",
    )
    no_show_seconds = _seconds(
        "no_show_seconds",
        15 * 60,
        sentence(
            "Time without use or check-in after which a booking is released. Only time "
            "with readings counts."
        ),
        "15 min",
    )
    idle_seconds = _seconds(
        "idle_seconds",
        30 * 60,
        sentence(
            "Time below the idle threshold after which the holder is warned. Only time "
            "with readings counts."
        ),
        "30 min",
    )
    idle_grace_seconds = _seconds(
        "idle_grace_seconds",
        10 * 60,
        sentence(
            "Time from the warning to the release. Only time with readings counts."
        ),
        "10 min",
    )
    idle_util_pct = models.FloatField(
        default=3,
        validators=_limits("idle_util_pct"),
        help_text=sentence(
            "Mean utilization under which a GPU counts as idle. In percent, "
            "0 to 100; default 3."
        ),
    )
    release_no_shows = models.BooleanField(
        default=True,
        help_text=sentence(
            "Release bookings that nobody uses (no-shows); default yes."
        ),
    )
    release_idle = models.BooleanField(
        default=False,
        help_text=sentence(
            "Release bookings that stay idle after a warning; default no."
        ),
    )
    strike_no_shows = _number(
        "strike_no_shows",
        3,
        sentence("No-shows of one person that shorten the horizon."),
    )
    strike_window_seconds = _seconds(
        "strike_window_seconds",
        30 * DAY,
        sentence("Only no-shows within this time count."),
        sentence("30 days"),
    )
    strike_horizon_seconds = _seconds(
        "strike_horizon_seconds",
        48 * HOUR,
        sentence("How far ahead a person may book after these no-shows, firm or flex."),
        "48 h",
    )
    strike_seconds = _seconds(
        "strike_seconds",
        14 * DAY,
        sentence("How long the shorter horizon lasts after the last no-show."),
        sentence("14 days"),
    )
    overstay_seconds = _seconds(
        "overstay_seconds",
        12 * HOUR,
        sentence(
            "How long a reservation may stay on after its end while nobody books its "
            "GPUs. 0: not at all."
        ),
        "12 h",
    )
    overstay_notice_seconds = _seconds(
        "overstay_notice_seconds",
        10 * 60,
        sentence(
            "Time to leave after someone books a GPU on which a reservation stayed on."
        ),
        "10 min",
    )
    token_seconds = _seconds(
        "token_seconds",
        90 * DAY,
        sentence(
            "How long a voucher is valid. The booking must begin within this time."
        ),
        sentence("90 days"),
    )
    planned_requests = _number(
        "planned_requests",
        5,
        sentence(
            "Number of waiting requests, from the first in line, that get a planned "
            "start."
        ),
    )
    waiting_requests = _number(
        "waiting_requests",
        5,
        sentence("Waiting requests that one person may have at a time."),
    )
    look_again_seconds = _seconds(
        "look_again_seconds",
        60,
        sentence("How often waiting requests are checked when nothing has changed."),
        "1 min",
    )
    lost_seconds = _seconds(
        "lost_seconds",
        10 * 60,
        sentence("If a GPU is lost for longer than this, its reservation is refunded."),
        "10 min",
    )
    stop_grace_seconds = models.PositiveIntegerField(
        default=30,
        validators=[MinValueValidator(0), MaxValueValidator(HOUR)],
        help_text=sentence(
            "{meaning} In seconds; default {default}.",
            meaning=sentence("Time between SIGTERM and SIGKILL when a job is stopped."),
            default=30,
            shown="30 s",
        ),
    )
    job_folder_bytes = models.PositiveBigIntegerField(
        default=100 * 2**30,
        validators=[MaxValueValidator(2**50)],
        help_text=sentence(
            "Largest size of a job's folder on its node. A job that exceeds "
            "it is stopped. In bytes; 0: no limit; default 107374182400 "
            "(100 GiB)."
        ),
    )
    person_folders_bytes = models.PositiveBigIntegerField(
        default=300 * 2**30,
        validators=[MaxValueValidator(2**50)],
        help_text=sentence(
            "Most that the folders of one person's Jobs may hold on one node "
            "together; the oldest ones of ended Jobs are removed first. In bytes; 0: "
            "no limit; default 322122547200 (300 GiB)."
        ),
    )
    names_visible = models.BooleanField(
        default=True,
        help_text=sentence(
            "Students see who holds a GPU. Off: they see only the group. Default yes."
        ),
    )
    heads_add_members = models.BooleanField(
        default=True,
        help_text=sentence(
            "Group heads add and remove members and make links to join; default yes."
        ),
    )
    version = models.PositiveIntegerField(
        default=1,
        editable=False,
        help_text=sentence("Counts the changes; stored with every decision."),
    )

    history = HistoricalRecords()

    class Meta:
        verbose_name_plural = "site policy"

    def __str__(self) -> str:
        return "Site policy"

    def save(self, *args: Any, **kwargs: Any) -> None:
        """Keep a valid policy as the next version.

        Raises:
            ValidationError: on the field that is wrong; nothing is kept.
        """
        # Of two that make the first row the database refuses one, and `current` reads
        # what the other made.
        self.full_clean(validate_unique=not kwargs.get("force_insert", False))
        newest = type(self).objects.filter(pk=self.pk).values_list("version").first()
        if newest is not None:
            self.version = newest[0] + 1
            if kwargs.get("update_fields") is not None:
                kwargs["update_fields"] = {*kwargs["update_fields"], "version"}
        super().save(*args, **kwargs)

    def clean(self) -> None:
        """Refuse rules that contradict each other.

        Raises:
            ValidationError: on the field that is wrong.
        """
        for ratio in RATIOS:
            if not math.isfinite(getattr(self, ratio)):
                raise ValidationError({ratio: "is not a number"})
        try:
            self.to_policy()
        except PolicyInvalid as invalid:
            name = invalid.field
            ratio = name.replace("_permille", "_ratio")
            name = ratio if ratio in RATIOS else name
            raise ValidationError({name: invalid.why}) from invalid

    def to_policy(self) -> Policy:
        """Return the rules as the frozen value that decisions take.

        Raises:
            PolicyInvalid: the row contradicts itself.
        """
        same = {
            field.name: getattr(self, field.name)
            for field in fields(Policy)
            if not field.name.endswith("_permille")
        }
        parts = {
            ratio.replace("_ratio", "_permille"): round(getattr(self, ratio) * 1000)
            for ratio in RATIOS
        }
        return Policy(**same, **parts)

    @classmethod
    def current(cls) -> "SitePolicy":
        """Return the one row, made with the defaults where it is missing."""
        return cls.objects.filter(pk=1).first() or cls.objects.get_or_create(pk=1)[0]

    @classmethod
    def of_version(cls, version: int) -> Policy | None:
        """Return the rules as they were at a version; None: not known."""
        row = cls.history.filter(version=version).order_by("-history_id").first()
        return row.instance.to_policy() if row is not None else None
