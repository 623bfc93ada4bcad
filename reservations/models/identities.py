"""How people sign in with an identity provider, and what its groups give them.

An identity is the pair of issuer and subject of OpenID Connect (Core 1.0, section 2).
A mail address never identifies a person.
"""

from django.db import models
from django.utils import timezone

from reservations.models.accounts import Account, User

UNIX_LOGIN_UNKNOWN = models.Q(unix_user="") & (
    models.Q(name_from_provider=True) | models.Q(identities__name_from_provider=True)
)
"""Users whose Unix login is not known. The user name of all others is one."""


class Identity(models.Model):
    """A person's login at one provider. A User may have several."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="identities")
    issuer = models.CharField(max_length=400)
    subject = models.CharField(max_length=255)
    groups = models.JSONField(
        null=True,
        blank=True,
        help_text="Values of the groups claim at the last sign-in. Empty: none was "
        "ever sent.",
    )
    created_at = models.DateTimeField(default=timezone.now)
    seen_at = models.DateTimeField(default=timezone.now)
    name_from_provider = models.BooleanField(
        default=False,
        help_text="The person has the user name of the provider, where people may "
        "choose it. So it is no Unix login.",
    )
    """Release 0.1.0 writes and reads only this one, before it is reloaded and after an
    operator returns to it. So both are written, and either counts. The release after
    the next one removes it."""
    unix_user = models.CharField(
        max_length=32,
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="The Unix user that this login gave the person.",
    )
    unix_uid = models.BigIntegerField(
        null=True,
        blank=True,
        editable=False,
        help_text="The uid that this Unix user must have on the nodes.",
    )

    class Meta:
        ordering = ["issuer", "pk"]
        verbose_name_plural = "identities"
        constraints = [
            models.UniqueConstraint(
                fields=["issuer", "subject"], name="one_identity_per_issuer_and_subject"
            )
        ]

    def __str__(self) -> str:
        return f"{self.subject} at {self.issuer}"


class UsedAssertion(models.Model):
    """A SAML assertion that was accepted. It stays until it ends, to notice a replay.

    A signed-in person who connects a login has to open a page of the portal afterwards,
    because browsers send no session with the form of another site. Until then the
    claims are here.
    """

    assertion_hash = models.CharField(max_length=64, unique=True, editable=False)
    expires_at = models.DateTimeField()
    user = models.ForeignKey(
        User,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="used_assertions",
        help_text="Who connects a login. Empty: a visitor signed in.",
    )
    token_hash = models.CharField(max_length=64, blank=True, editable=False)
    claims = models.JSONField(null=True, blank=True)

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"assertion until {self.expires_at}"


class ClaimRole(models.TextChoices):
    """What a value of the groups claim gives."""

    MEMBER = "member"
    HEAD = "head"
    OPERATOR = "operator"


class ClaimMapping(models.Model):
    """What one value of a provider's groups claim gives: a role, in an Account."""

    issuer = models.CharField(max_length=400)
    value = models.CharField(max_length=255)
    account = models.ForeignKey(
        Account,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="claim_mappings",
        help_text="Empty for operators.",
    )
    role = models.CharField(max_length=8, choices=ClaimRole.choices)

    class Meta:
        ordering = ["issuer", "value", "pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["issuer", "value", "account"],
                name="one_role_per_claim_value_and_account",
            )
        ]

    def __str__(self) -> str:
        return f"{self.value}: {self.role} of {self.account or 'the site'}"


class ClaimGrant(models.Model):
    """A right that an identity's groups gave, and that they may take away again.

    A Membership without a grant was made by a person, and no claim ends it.
    """

    identity = models.ForeignKey(
        Identity, on_delete=models.CASCADE, related_name="grants"
    )
    account = models.ForeignKey(
        Account,
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="claim_grants",
        help_text="Empty for operators.",
    )
    role = models.CharField(max_length=8, choices=ClaimRole.choices)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["pk"]

    def __str__(self) -> str:
        return f"{self.role} of {self.account or 'the site'} for {self.identity}"
