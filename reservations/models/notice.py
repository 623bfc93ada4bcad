"""Notices to Users: unread, and afterwards as history."""

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy

from reservations.models.accounts import Account, User
from reservations.models.calendar import Reservation
from telemetry.protocol.sentences import sentence


class NoticeQuerySet(models.QuerySet["Notice"]):
    """Reads of Notices."""

    def unread(self, user: User) -> "NoticeQuerySet":
        """The unread Notices of a User, newest first."""
        return self.filter(user=user, read_at=None)


class Notice(models.Model):
    """One notice to a User about an event, mostly about a Reservation of that User.

    ``detail`` has the numbers. The text is made when it is shown, because the right to
    read a name can change (``notifications/queries.py``).
    """

    class Kind(models.TextChoices):
        """Kinds of events, with their names in a User's settings."""

        DISPLACED = "displaced", sentence("Another person took a flex booking of yours")
        PLACED = "placed", sentence("A waiting request was booked")
        PLANNED = "planned", sentence("A waiting request has a planned start")
        DECLINED = "declined", sentence("A waiting request ended without a booking")
        SLOT_OFFERED = (
            "slot_offered",
            sentence("A slot is offered to a waiting request"),
        )
        BOOKING_STARTED = "booking_started", sentence("A booking of yours has started")
        MOVED = "moved", sentence("A booking moved to another GPU")
        RELEASED = "released", sentence("Your GPUs were released")
        IDLE_WARNING = (
            "idle_warning",
            sentence("Your GPUs are idle and will be released"),
        )
        UNBOOKED_USE = (
            "unbooked_use",
            sentence("You use a GPU without a booking"),
        )
        ENDING_SOON = "ending_soon", sentence("A booking ends soon")
        OVERSTAY_CLAIMED = (
            "overstay_claimed",
            sentence("Another person needs the GPUs you stayed on"),
        )
        REFUNDED = "refunded", sentence("You got a refund after a failure")
        VOUCHER_GIVEN = "token_given", sentence("You got a voucher")
        MAINTENANCE = "maintenance", sentence("Maintenance affects a booking")
        OFFER_MADE = "offer_made", sentence("You were offered a booking")
        OFFER_ANSWERED = "offer_answered", sentence("An offer of yours was answered")
        ASKED = "asked", sentence("Someone writes about a booking of yours")
        COUSER_ADDED = "couser_added", sentence("A booking was shared with you")
        SERIES_CONFLICT = (
            "series_conflict",
            sentence("A repeated booking found no free time"),
        )
        COURSE_ENDING = "course_ending", sentence("A group or course of yours ends")
        LOW_USE = "low_use", sentence("Booked GPUs are hardly used")
        JOB_STARTED = "job_started", sentence("A job started")
        JOB_DONE = "job_done", sentence("A job finished")
        JOB_FAILED = "job_failed", sentence("A job failed")
        JOB_WARNING = "job_warning", sentence("A job is about to be stopped")
        PLAN_AGAIN = "plan_again", sentence("A job was planned again for other GPUs")
        JOB_HELD = "job_held", sentence("A GPU is held after its job")
        SERVE_DOWN = "serve_down", sentence("A served model does not answer")
        WEBHOOK_OFF = "webhook_off", sentence("Your webhook was switched off")
        TRIAL = "trial", sentence("A test message, sent by you")

    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="notices")
    # Without choices, so that a new kind does not change the table.
    kind = models.CharField(max_length=24)
    reservation = models.ForeignKey(
        Reservation,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="notices",
    )
    key = models.CharField(
        max_length=120, blank=True, help_text="The same key is told once only."
    )
    told_at = models.DateTimeField(default=timezone.now)
    read_at = models.DateTimeField(null=True, blank=True)
    detail = models.JSONField(default=dict, blank=True)

    objects = NoticeQuerySet.as_manager()

    class Meta:
        verbose_name = gettext_lazy("notice")
        verbose_name_plural = gettext_lazy("notices")
        ordering = ["-told_at", "-pk"]
        indexes = [
            models.Index(fields=["user", "read_at"]),
            models.Index(fields=["user", "told_at"]),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "kind", "key"],
                condition=~models.Q(key=""),
                name="notice_told_once",
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} of #{self.reservation_id}, to {self.user}"

    @property
    def kind_words(self) -> str:
        """Return the name of its kind."""
        return self.Kind(self.kind).label


class NoticeSettings(models.Model):
    """A User's choice of mail and webhook. Without a row the defaults apply."""

    class Format(models.TextChoices):
        """The format that a webhook's receiver accepts. Payloads:
        ``notifications/chat_payloads.py``.
        """

        PORTAL = "portal", sentence("own program (signed JSON)")
        SLACK = "slack", "Slack"
        MATTERMOST = "mattermost", "Mattermost"
        TEAMS = "teams", "Microsoft Teams"
        MATRIX = "matrix", "Matrix (hookshot)"
        NTFY = "ntfy", "ntfy"

    user = models.OneToOneField(
        User, on_delete=models.CASCADE, related_name="notice_settings"
    )
    chosen = models.JSONField(
        default=dict,
        blank=True,
        help_text="{kind: [channels]} where it differs from the default.",
    )
    quiet_from = models.TimeField(null=True, blank=True)
    quiet_until = models.TimeField(null=True, blank=True)
    muted_until = models.DateTimeField(null=True, blank=True)
    webhook_url = models.CharField(max_length=400, blank=True)
    webhook_format = models.CharField(
        max_length=12, choices=Format, default=Format.PORTAL
    )
    webhook_nonce = models.CharField(
        max_length=32, blank=True, help_text="The signing secret is derived from it."
    )
    webhook_failures = models.PositiveSmallIntegerField(default=0)
    webhook_disabled_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"notices to {self.user}"


class GroupChat(models.Model):
    """The chat that receives the notices of a group's bookings, too."""

    account = models.OneToOneField(
        Account, on_delete=models.CASCADE, related_name="chat"
    )
    webhook_url = models.CharField(max_length=400)
    webhook_format = models.CharField(
        max_length=12, help_text="A value of NoticeSettings.Format."
    )
    webhook_nonce = models.CharField(
        max_length=32, help_text="The signing secret is derived from it."
    )
    webhook_failures = models.PositiveSmallIntegerField(default=0)
    webhook_disabled_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return f"chat of {self.account}"

    @property
    def format_words(self) -> str:
        """Return the name of its receiver."""
        return str(NoticeSettings.Format(self.webhook_format).label)


class Delivery(models.Model):
    """One Notice on its way by one channel. It is retried until it ends."""

    class Channel(models.TextChoices):
        MAIL = "mail"
        WEBHOOK = "webhook"
        GROUP = "group"

    class State(models.TextChoices):
        PENDING = "pending"
        SENDING = "sending"
        SENT = "sent"
        FAILED = "failed"
        DROPPED = "dropped"

    notice = models.ForeignKey(
        Notice, on_delete=models.CASCADE, related_name="deliveries"
    )
    channel = models.CharField(max_length=8, choices=Channel)
    state = models.CharField(max_length=8, choices=State, default=State.PENDING)
    tries = models.PositiveSmallIntegerField(default=0)
    next_at = models.DateTimeField(
        help_text="Not before then; while it is being sent: until when it is claimed."
    )
    batch = models.CharField(
        max_length=32, blank=True, help_text="What goes out together; kept on retries."
    )
    error = models.CharField(max_length=300, blank=True)
    done_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["next_at", "pk"]
        indexes = [models.Index(fields=["state", "next_at"])]
        constraints = [
            models.UniqueConstraint(
                fields=["notice", "channel"], name="delivery_once_by_channel"
            )
        ]

    def __str__(self) -> str:
        return f"#{self.notice_id} by {self.channel}: {self.state}"
