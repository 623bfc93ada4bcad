"""Set a new password, and end what the previous one opened.

A new password ends every browser session, because Django binds a session to the
password. API tokens and ssh keys stay, because jobs and scripts need them, unless the
person asks to end them.
"""

from datetime import datetime

from django.contrib.auth.hashers import check_password
from django.contrib.auth.password_validation import validate_password
from django.db import transaction
from django.views.decorators.debug import sensitive_variables

from reservations.accounts.openid_clients.service import end_tokens
from reservations.models import Invitation, User
from reservations.rules.errors import NotFound
from reservations.store.audit_log import audit_act
from telemetry.protocol.sentences import sentence


@sensitive_variables("password")
def reset(*, seen: User, password: str, end_keys: bool, now: datetime) -> User:
    """Set the password of a person who followed a mailed link.

    Args:
        seen: the person as they were when the link was checked. A link is valid for one
            password and one last sign-in.
        end_keys: whether to revoke the API tokens, remove the ssh keys, and end
            the tokens that services have for the person.

    Raises:
        NotFound: the link was used, or its person was switched off, meanwhile.
        ValidationError: the password is too weak.
    """
    with transaction.atomic(durable=True):
        user = _locked(seen.pk)
        if (user.password, user.last_login) != (seen.password, seen.last_login):
            raise NotFound(what=sentence("such link, or it is used or too old"))
        _set(user, password)
        tokens = keys = 0
        if end_keys:
            tokens = user.tokens.filter(revoked_at=None).update(revoked_at=now)
            keys = user.ssh_keys.all().delete()[0]
            end_tokens(user)
        audit_act(
            verb="password.reset",
            subject=f"user:{user.pk}",
            actor=user,
            now=now,
            tokens_revoked=tokens,
            ssh_keys_removed=keys,
        )
    return user


@sensitive_variables("current", "password")
def change(*, user_pk: int, current: str, password: str, now: datetime) -> User:
    """Set the password of a signed-in person, who knows the current one.

    Raises:
        NotFound: the current password is another one now.
        ValidationError: the password is too weak.
    """
    with transaction.atomic(durable=True):
        user = _locked(user_pk)
        if not check_password(current, user.password):
            raise NotFound(what=sentence("such password"))
        _set(user, password)
        audit_act(
            verb="password.changed", subject=f"user:{user.pk}", actor=user, now=now
        )
    return user


def _locked(user_pk: int) -> User:
    rows = User.objects.select_for_update(no_key=True, of=("self",))
    found = rows.filter(pk=user_pk, is_active=True, erased_at=None).first()
    if found is None:
        raise NotFound(what=sentence("person who may sign in"))
    return found


@sensitive_variables("password")
def _set(user: User, password: str) -> None:
    validate_password(password, user)
    user.set_password(password)
    user.save(update_fields=["password"])
    # A link that an admin made for the previous password would replace the new one.
    Invitation.objects.filter(user=user, used_at=None).delete()
