"""Users, the tree of Accounts that are charged, and the right to book under them.

The words are Slurm's: an Account is a node of the tree, a Membership (Slurm:
association) is the right of one User to book under one Account.
"""

import hashlib
import re
import secrets

from django.contrib.auth.models import AbstractUser
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, RegexValidator
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy
from simple_history.models import HistoricalRecords


class User(AbstractUser):
    """A login. The Unix user of its Jobs is set by the operator only."""

    display_name = models.CharField(max_length=80, blank=True)
    unix_user = models.CharField(
        max_length=32,
        blank=True,
        # useradd(8): the logins that Debian accepts, without a trailing dollar.
        validators=[RegexValidator(r"^[a-z_][a-z0-9_-]{0,31}$", "Not a Unix login.")],
        help_text="Existing Unix account (uid 1000 or more) that the Jobs run as.",
    )
    hue = models.PositiveSmallIntegerField(
        default=210, validators=[MaxValueValidator(359)]
    )
    time_zone = models.CharField(
        max_length=64,
        blank=True,
        help_text="IANA name of the zone in which times are shown. Empty: the site's.",
    )
    language = models.CharField(
        max_length=16,
        blank=True,
        help_text="Code of the language of pages and mails, for example de. "
        "Empty: the browser's for pages, the site's for mails.",
    )
    tour_seen_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When the tour was closed."
    )
    erased_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When the person was erased."
    )
    name_from_provider = models.BooleanField(
        default=False,
        db_default=False,
        editable=False,
        help_text="The user name is that of an identity provider where people may "
        "choose it. So it is no Unix login.",
    )
    """It stays when the login at the provider is disconnected."""
    second_factor_asked_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="When the portal first asked this operator for a second factor.",
    )

    class Meta(AbstractUser.Meta):
        ordering = ["username"]

    def __str__(self) -> str:
        return self.display_name or self.username

    @property
    def is_operator(self) -> bool:
        """Whether this User runs the site."""
        return self.is_active and self.is_superuser


class Account(models.Model):
    """A node of the charged tree: institution, group. ``parent`` null: root."""

    name = models.SlugField(max_length=63, unique=True)
    title = models.CharField(max_length=120, blank=True)
    parent = models.ForeignKey(
        "self", null=True, blank=True, on_delete=models.PROTECT, related_name="children"
    )
    shares = models.PositiveIntegerField(default=1)
    quota_gpu_seconds = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="Weighted GPU-seconds in any rolling 7 days; empty: sum of members.",
    )
    hue = models.PositiveSmallIntegerField(
        default=210,
        validators=[MaxValueValidator(359)],
        help_text="Colour of the group on the calendar, 0 to 359.",
    )
    ends_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="A course's end: bookings end with it and it is archived.",
    )
    archived_at = models.DateTimeField(null=True, blank=True, editable=False)
    version = models.PositiveIntegerField(default=1, editable=False)

    history = HistoricalRecords()

    class Meta:
        verbose_name = gettext_lazy("account")
        verbose_name_plural = gettext_lazy("accounts")
        ordering = ["name"]

    def __str__(self) -> str:
        return self.title or self.name

    def clean(self) -> None:
        """Refuse a parent that is below this Account.

        Raises:
            ValidationError: the Accounts would form a cycle.
        """
        above = self.parent
        while above is not None:
            if above.pk == self.pk and self.pk is not None:
                raise ValidationError({"parent": "This account stands above it."})
            above = above.parent


class Membership(models.Model):
    """The right of one User to book under one Account."""

    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="memberships")
    account = models.ForeignKey(
        Account, on_delete=models.PROTECT, related_name="memberships"
    )
    shares = models.PositiveIntegerField(default=1)
    is_head = models.BooleanField(default=False, help_text="Head of this group.")
    active = models.BooleanField(default=True)
    quota_gpu_seconds = models.BigIntegerField(
        null=True,
        blank=True,
        help_text="Weighted GPU-seconds in any rolling 7 days; empty: the site's.",
    )
    expires_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="When the membership of a guest ends. Empty: never.",
    )
    sponsor = models.ForeignKey(
        User,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="guests",
        help_text="Sponsor of a guest: a member of the same account.",
    )
    version = models.PositiveIntegerField(default=1, editable=False)

    history = HistoricalRecords()

    class Meta:
        verbose_name = gettext_lazy("membership")
        verbose_name_plural = gettext_lazy("memberships")
        ordering = ["account__name", "user__username"]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "account"], name="one_membership_per_user_and_account"
            )
        ]

    def __str__(self) -> str:
        return f"{self.user} in {self.account}"

    def clean(self) -> None:
        """Refuse a guest without a last day.

        Raises:
            ValidationError: on the field that is missing.
        """
        if self.sponsor_id is not None and self.expires_at is None:
            raise ValidationError({"expires_at": "A guest needs a last day."})

    @property
    def is_guest(self) -> bool:
        """Whether this member has a sponsor."""
        return self.sponsor_id is not None


class ApiToken(models.Model):
    """A scoped, expiring, revocable key of one User. Only its hash is stored."""

    SCOPES = ("read", "book", "job", "serve", "metrics")
    SERVED = re.compile(r"serve:[1-9][0-9]{0,17}")
    """The scope for one Job's served models only."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    label = models.CharField(max_length=60)
    token_hash = models.CharField(max_length=64, unique=True, editable=False)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        verbose_name = gettext_lazy("API token")
        verbose_name_plural = gettext_lazy("API tokens")
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.label} of {self.user}"

    @staticmethod
    def hash_token(token: str) -> str:
        """Return the stored form (the token is random, so no salt)."""
        return hashlib.sha256(token.encode()).hexdigest()

    @staticmethod
    def draw() -> str:
        """Return a new token's text."""
        return "gp_" + secrets.token_urlsafe(32)
