"""The operator's thresholds: one row, edited in the admin."""

from dataclasses import fields

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.functional import Promise
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as lazy

from telemetry.rules import retention, thresholds
from telemetry.rules.retention import RetentionTimes
from telemetry.rules.thresholds import (
    JudgePolicy,
    PolicyInvalid,
    parse_codes,
    parse_names,
)

CODES = ("xid_critical", "xid_warning", "xid_never")
DEFAULTS = JudgePolicy()
KEPT = RetentionTimes()


def _bounds(name: str) -> list[MinValueValidator | MaxValueValidator]:
    least, most = thresholds.BOUNDS[name]
    return [MinValueValidator(least), MaxValueValidator(most)]


def _seconds(name: str, meaning: str | Promise) -> models.PositiveIntegerField:  # type: ignore[type-arg]
    return models.PositiveIntegerField(
        default=getattr(DEFAULTS, name),
        validators=_bounds(name),
        help_text=format_lazy("{} {}", meaning, lazy("Seconds.")),
    )


def _mib(name: str, meaning: str | Promise) -> models.PositiveIntegerField:  # type: ignore[type-arg]
    return models.PositiveIntegerField(
        default=getattr(DEFAULTS, name),
        validators=_bounds(name),
        help_text=format_lazy("{} MiB.", meaning),
    )


def _codes(name: str, meaning: str | Promise) -> models.CharField:  # type: ignore[type-arg]
    codes = " ".join(str(code) for code in getattr(DEFAULTS, name))
    return models.CharField(
        max_length=400,
        blank=True,
        default=codes,
        help_text=format_lazy("{} {}", meaning, lazy("XID codes.")),
    )


class TelemetryPolicy(models.Model):
    """One row. Idleness and absence are in the site policy: one truth for each."""

    least_samples = models.PositiveSmallIntegerField(
        default=DEFAULTS.least_samples,
        validators=_bounds("least_samples"),
        help_text=lazy("Fresh samples in a row that must show a cause. Samples."),
    )
    intruder_after_seconds = _seconds(
        "intruder_after_seconds",
        lazy("How long another person's process must run on a booked GPU."),
    )
    squatter_after_seconds = _seconds(
        "squatter_after_seconds",
        lazy("How long a process must run on a GPU that nobody has booked."),
    )
    overrun_after_seconds = _seconds(
        "overrun_after_seconds",
        lazy(
            "How long the last holder's process must still run after the end and the "
            "grace time."
        ),
    )
    zombie_after_seconds = _seconds(
        "zombie_after_seconds",
        lazy("How long memory must be used without a visible process."),
    )
    zombie_memory_mib = _mib(
        "zombie_memory_mib",
        lazy("Memory in use without a process that is worth an alert."),
    )
    lost_after_seconds = _seconds(
        "lost_after_seconds", lazy("How long the driver must fail to answer for a GPU.")
    )
    silent_after_seconds = _seconds(
        "silent_after_seconds", lazy("How long a node must send no readings.")
    )
    thermal_after_seconds = _seconds(
        "thermal_after_seconds",
        lazy("How long the hardware must slow a GPU down because of heat."),
    )
    brake_after_seconds = _seconds(
        "brake_after_seconds", lazy("How long the power brake must be on.")
    )
    counter_after_seconds = _seconds(
        "counter_after_seconds",
        lazy(
            "How long an ECC or row-remap counter must show an error. Counters are "
            "read every 10 s."
        ),
    )
    closes_after_seconds = _seconds(
        "closes_after_seconds",
        lazy("How long a cause must be gone to close its alert."),
    )
    hardware_closes_after_seconds = _seconds(
        "hardware_closes_after_seconds",
        lazy("How long a hardware cause must be gone to close its alert."),
    )
    reopens_within_seconds = _seconds(
        "reopens_within_seconds",
        lazy("A cause that comes back within this time opens the same alert again."),
    )
    xid_critical = _codes("xid_critical", lazy("Open a critical alert."))
    xid_warning = _codes("xid_warning", lazy("Open a warning."))
    xid_never = _codes("xid_never", lazy("Count only. Never open an alert."))
    xid_stands_seconds = _seconds(
        "xid_stands_seconds",
        lazy("How long an alert stays open after the last XID, unless it is cleared."),
    )
    whitelist = models.TextField(
        blank=True,
        default="\n".join(DEFAULTS.whitelist),
        help_text=lazy(
            "Programs that never open an alert, one name per line. * and ? "
            "match as in file names."
        ),
    )
    whitelist_memory_mib = _mib(
        "whitelist_memory_mib",
        lazy(
            "A listed program that uses more memory than this opens alerts like any "
            "other."
        ),
    )
    warn_after_seconds = _seconds(
        "warn_after_seconds",
        lazy(
            "Time from the alert about someone else's process to the warning on its "
            "terminal."
        ),
    )
    stop_after_seconds = _seconds(
        "stop_after_seconds",
        lazy(
            "Time from the alert about someone else's process to the end of that "
            "process."
        ),
    )
    new_gpus_wait = models.BooleanField(
        lazy("new GPUs wait"),
        default=True,
        help_text=lazy(
            "A GPU that a node first reports more than a day after its enrolment "
            "cannot be booked until the lab admin approves it. Off: it can be booked "
            "at once."
        ),
    )
    keep_raw_seconds = models.PositiveIntegerField(
        default=KEPT.raw_seconds,
        validators=[
            MinValueValidator(retention.RAW_LEAST_SECONDS),
            MaxValueValidator(retention.RAW_MOST_SECONDS),
        ],
        help_text=lazy("How long raw samples stay in the broker. Seconds."),
    )
    keep_minute_days = models.PositiveSmallIntegerField(
        default=KEPT.minute_days,
        validators=[
            MinValueValidator(retention.MINUTE_LEAST_DAYS),
            MaxValueValidator(retention.MINUTE_MOST_DAYS),
        ],
        help_text=lazy("How long a row per GPU and minute is kept. Days."),
    )
    keep_hour_days = models.PositiveSmallIntegerField(
        default=KEPT.hour_days,
        validators=[
            MinValueValidator(retention.MINUTE_LEAST_DAYS),
            MaxValueValidator(retention.HOUR_MOST_DAYS),
        ],
        help_text=lazy(
            "How long a row per GPU and hour is kept, at least as long as "
            "minutes. Days. Summaries of reservations and jobs are kept forever."
        ),
    )

    class Meta:
        verbose_name_plural = "telemetry policy"

    def __str__(self) -> str:
        return "Telemetry policy"

    def clean(self) -> None:
        """Refuse thresholds that cannot be meant.

        Raises:
            ValidationError: on the field that is wrong.
        """
        try:
            self.to_policy()
        except PolicyInvalid as invalid:
            raise ValidationError({invalid.field: invalid.why}) from invalid
        if self.keep_hour_days < self.keep_minute_days:
            raise ValidationError(
                {
                    "keep_hour_days": gettext(
                        "Hours must be kept as long as minutes at least."
                    )
                }
            )

    def to_keeping(self) -> RetentionTimes:
        """Return how long each tier is kept."""
        return RetentionTimes(
            raw_seconds=self.keep_raw_seconds,
            minute_days=self.keep_minute_days,
            hour_days=self.keep_hour_days,
        )

    def to_policy(self) -> JudgePolicy:
        """Return the thresholds as the frozen value that judging takes.

        Raises:
            PolicyInvalid: the row contradicts itself.
        """
        values = {item.name: getattr(self, item.name) for item in fields(JudgePolicy)}
        for name in CODES:
            values[name] = parse_codes(values[name], field=name)
        values["whitelist"] = parse_names(values["whitelist"])
        return JudgePolicy(**values)

    @classmethod
    def current(cls) -> "TelemetryPolicy":
        """Return the one row, made with the defaults where it is missing."""
        return cls.objects.filter(pk=1).first() or cls.objects.get_or_create(pk=1)[0]
