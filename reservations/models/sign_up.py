"""Mail domains whose people may sign up, and the mails that let them do it."""

from django.db import models
from django.utils import timezone

from reservations.models.accounts import Account, User


class SignUpDomain(models.Model):
    """A mail domain whose people may make an account. Without a row nobody may."""

    domain = models.CharField(
        max_length=255,
        unique=True,
        help_text="In small ASCII letters. “*.example.org” means the domains below "
        "example.org, and not example.org.",
    )
    account = models.ForeignKey(
        Account,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="sign_up_domains",
        help_text="The group that these people join. Empty: none.",
    )

    class Meta:
        ordering = ["domain"]

    def __str__(self) -> str:
        return self.domain


class SignUp(models.Model):
    """A mail that was sent because somebody typed an address on the page Sign up.

    A used one stays with its person. So one address never makes two people.
    """

    address = models.CharField(max_length=254, db_index=True)
    link_hash = models.CharField(max_length=64, unique=True, editable=False)
    """Of a text that the mail has, unless the address has an account already."""
    created_at = models.DateTimeField(default=timezone.now, db_index=True)
    expires_at = models.DateTimeField()
    used_at = models.DateTimeField(null=True, blank=True)
    user = models.ForeignKey(
        User,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="sign_ups",
        help_text="The person whom it made.",
    )

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"sign-up of {self.created_at}"
