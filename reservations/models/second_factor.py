"""What people prove a sign-in with, beside the password."""

from django.db import models
from django.utils import timezone

from reservations.models.accounts import User


class SecondFactor(models.Model):
    """An authenticator app (TOTP, RFC 6238) or a passkey (WebAuthn) of one User."""

    class Kind(models.TextChoices):
        """What it is."""

        TOTP = "totp"
        PASSKEY = "passkey"

    user = models.ForeignKey(
        User, on_delete=models.CASCADE, related_name="second_factors"
    )
    kind = models.CharField(max_length=8, choices=Kind.choices)
    name = models.CharField(max_length=60)
    secret = models.TextField(
        help_text="TOTP: the secret, sealed with SECRET_KEY. Passkey: its id and "
        "public key, in base64."
    )
    rp_id = models.CharField(
        max_length=253, blank=True, help_text="The host name for which a passkey works."
    )
    counter = models.BigIntegerField(
        default=0,
        help_text="TOTP: the last time step that was accepted. Passkey: its counter.",
    )
    wrong_codes = models.PositiveSmallIntegerField(
        default=0, help_text="Wrong codes since the last right one."
    )
    wrong_at = models.DateTimeField(
        null=True, blank=True, help_text="When the last wrong code came."
    )
    added_at = models.DateTimeField(default=timezone.now)
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["added_at", "pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["user"],
                condition=models.Q(kind="totp"),
                name="one_authenticator_app_per_user",
            )
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.user}"


class RecoveryCode(models.Model):
    """A code that stands in for a lost factor, once. Only its hash is stored."""

    user = models.ForeignKey(
        User, on_delete=models.CASCADE, related_name="recovery_codes"
    )
    code_hash = models.CharField(max_length=64)
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "code_hash"], name="one_recovery_code_per_hash"
            )
        ]

    def __str__(self) -> str:
        return f"recovery code of {self.user}"
