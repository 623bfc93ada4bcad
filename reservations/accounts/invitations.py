"""Links with which new people set a password once: random, hashed, expiring.

The text of a link exists only where it is shown or mailed. It is not in the database,
the broker or our logs.
"""

import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.contrib.auth.password_validation import validate_password
from django.db import transaction
from django.views.decorators.debug import sensitive_variables

from reservations.models import ApiToken, Invitation, User
from reservations.rules.errors import NotFound
from reservations.store.audit_log import audit_act
from telemetry.protocol.sentences import sentence

DAYS = 14
UNUSABLE = "!"
"""Django's mark of an unusable password."""


@transaction.atomic(durable=True)
def invite(
    *, user_ids: Sequence[int], actor: User | None, now: datetime, days: int = DAYS
) -> list[tuple[User, str]]:
    """Create a new link for each User who cannot sign in; older links expire.

    Returns:
        Each User with the text of the link. It cannot be shown again.
    """
    users = list(
        User.objects.select_for_update(no_key=True, of=("self",))
        .filter(
            pk__in=user_ids,
            is_active=True,
            erased_at=None,
            password__startswith=UNUSABLE,
            identities=None,
        )
        .order_by("pk")
    )
    Invitation.objects.filter(user__in=users, used_at=None).delete()
    made = [(user, secrets.token_urlsafe(32)) for user in users]
    Invitation.objects.bulk_create(
        Invitation(
            user=user,
            link_hash=ApiToken.hash_token(text),
            made_by=actor,
            created_at=now,
            expires_at=now + timedelta(days=days),
        )
        for user, text in made
    )
    if made:
        audit_act(
            verb="people.invited",
            subject=f"user:{users[0].pk}",
            actor=actor,
            now=now,
            users=[user.pk for user in users],
        )
    return made


def invitation_of(text: str, *, now: datetime) -> Invitation:
    """Return the invitation with a text.

    Raises:
        NotFound: unknown, used or expired, or the person has a password now.
    """
    found = (
        Invitation.objects.select_related("user")
        .filter(link_hash=ApiToken.hash_token(text), used_at=None, expires_at__gt=now)
        .filter(user__is_active=True, user__erased_at=None)
        .first()
    )
    if found is None:
        raise NotFound(what=sentence("such invitation, or it is used or too old"))
    return found


@sensitive_variables("text", "password")
def accept(*, text: str, password: str, now: datetime) -> User:
    """Set the password of the invited User. The link expires.

    Raises:
        NotFound: see ``invitation_of``, or another request was faster.
        ValidationError: the password is too weak.
    """
    with transaction.atomic(durable=True):
        found = invitation_of(text, now=now)
        validate_password(password, found.user)
        used = Invitation.objects.filter(pk=found.pk, used_at=None).update(used_at=now)
        if not used:
            raise NotFound(what=sentence("such invitation, or it is used or too old"))
        user = found.user
        user.set_password(password)
        user.save(update_fields=["password"])
        audit_act(
            verb="invitation.accepted", subject=f"user:{user.pk}", actor=user, now=now
        )
    return user


def revoke(*, invitation_ids: Sequence[int]) -> None:
    """End links that could not be handed over."""
    Invitation.objects.filter(pk__in=invitation_ids, used_at=None).delete()
