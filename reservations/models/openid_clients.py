"""Services that people sign in to with the portal: OpenID Connect with the portal as
the provider (docs/logins.md#services).

Secrets, codes and tokens are random, and only their hashes are stored.
"""

import secrets
import uuid

from django.db import models
from django.utils import timezone

from reservations.models.accounts import User


class OpenidClient(models.Model):
    """A registered service, such as the lab's Grafana."""

    client_id = models.CharField(max_length=40, unique=True, editable=False)
    name = models.CharField(max_length=60)
    redirect_uris = models.JSONField(
        default=list, help_text="Addresses to which people go back, compared exactly."
    )
    scopes = models.JSONField(default=list, help_text="What it may ask for.")
    secret_hash = models.CharField(
        max_length=64,
        blank=True,
        editable=False,
        help_text="Empty: a public client, which has no secret and must use PKCE.",
    )
    secret_at = models.DateTimeField(null=True, blank=True, editable=False)
    enabled = models.BooleanField(default=True)
    made_by = models.ForeignKey(
        User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["name", "pk"]

    def __str__(self) -> str:
        return self.name

    @property
    def public(self) -> bool:
        """Whether it has no secret, because others could read it."""
        return not self.secret_hash

    @staticmethod
    def draw_id() -> str:
        """Return a new client ID."""
        return f"gp-{secrets.token_hex(10)}"

    @staticmethod
    def draw_secret() -> str:
        """Return the text of a new secret. It has letters, digits, - and _ only, so
        that programs that do not encode it work.
        """
        return secrets.token_urlsafe(32)


class OpenidSubject(models.Model):
    """The name under which services know a person. It never changes or returns."""

    user = models.OneToOneField(
        User, on_delete=models.CASCADE, related_name="openid_subject"
    )
    subject = models.UUIDField(default=uuid.uuid4, unique=True, editable=False)

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"{self.user}: {self.subject}"


class OpenidConsent(models.Model):
    """What a person agreed to give a service. Deleting it deletes codes and tokens."""

    user = models.ForeignKey(
        User, on_delete=models.CASCADE, related_name="openid_consents"
    )
    client = models.ForeignKey(
        OpenidClient, on_delete=models.CASCADE, related_name="consents"
    )
    scopes = models.JSONField(default=list)
    given_at = models.DateTimeField(default=timezone.now)
    used_at = models.DateTimeField(
        default=timezone.now, help_text="When the person last signed in to the service."
    )

    class Meta:
        ordering = ["client__name", "pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["user", "client"], name="one_openid_consent_per_user_and_client"
            )
        ]

    def __str__(self) -> str:
        return f"{self.user} at {self.client}"


class OpenidSignIn(models.Model):
    """What a code and the tokens that it gives have in common."""

    consent = models.ForeignKey(
        OpenidConsent, on_delete=models.CASCADE, related_name="%(class)ss"
    )
    scopes = models.JSONField(default=list)
    signed_in_at = models.DateTimeField(
        help_text="When the person signed in to the portal."
    )
    second_factor = models.BooleanField(
        default=False, help_text="Whether a second factor was proved then."
    )
    expires_at = models.DateTimeField()

    class Meta:
        abstract = True


class OpenidCode(OpenidSignIn):
    """An authorization code. A used one stays until it expires, to notice a replay."""

    code_hash = models.CharField(max_length=64, unique=True, editable=False)
    redirect_uri = models.CharField(max_length=400)
    nonce = models.CharField(max_length=255, blank=True)
    challenge = models.CharField(
        max_length=128, blank=True, help_text="Of PKCE, by S256. Empty: none was sent."
    )
    used_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"code of {self.consent}"


class OpenidToken(OpenidSignIn):
    """An access token, and the refresh token that was issued with it."""

    code = models.ForeignKey(
        OpenidCode,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="tokens",
        help_text="That gave it. Empty: the code has been cleared since.",
    )
    access_hash = models.CharField(max_length=64, unique=True, editable=False)
    refresh_hash = models.CharField(
        max_length=64, unique=True, null=True, blank=True, editable=False
    )
    refresh_until = models.DateTimeField(null=True, blank=True)
    replaced_at = models.DateTimeField(
        null=True, blank=True, help_text="When its refresh token was used."
    )

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"token of {self.consent}"
