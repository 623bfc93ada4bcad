"""What a person proves a sign-in with."""

from django.conf import settings

from reservations.accounts.second_factors.rules import FactorPolicy
from reservations.models import SecondFactor, User


def policy() -> FactorPolicy:
    """Return what the site says about second factors."""
    found: FactorPolicy = settings.LOGIN_SETTINGS.second_factor
    return found


def has_factor(user: User) -> bool:
    """Return whether a person has a second factor. Recovery codes alone are none."""
    return SecondFactor.objects.filter(user=user).exists()


def app_of(user: User) -> SecondFactor | None:
    """Return a person's authenticator app."""
    kind = SecondFactor.Kind.TOTP
    return SecondFactor.objects.filter(user=user, kind=kind).first()


def passkeys_of(user: User, rp_id: str) -> list[SecondFactor]:
    """Return a person's passkeys for a host name."""
    kind = SecondFactor.Kind.PASSKEY
    return list(SecondFactor.objects.filter(user=user, kind=kind, rp_id=rp_id))


def recovery_codes_left(user: User) -> int:
    """Return how many recovery codes a person has not used."""
    return user.recovery_codes.filter(used_at=None).count()
