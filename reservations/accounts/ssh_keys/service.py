"""The ssh public keys of a User: added, removed, and found for a certificate."""

from datetime import datetime

from django.db import transaction

from reservations.accounts.ssh_keys.public_key import (
    FIELD,
    SshKeyRefused,
    SshPublicKey,
    parse_public_key,
)
from reservations.models import AuditEntry, SshKey, User
from telemetry.protocol.sentences import sentence

MOST_KEYS = 20
"""Keys of one User."""
MOST_NAME_CHARACTERS = 60


@transaction.atomic(durable=True)
def add_key(*, user: User, text: str, name: str, now: datetime) -> SshKey:
    """Store a public key.

    Args:
        user: its owner.
        text: one line of a ``.pub`` file.
        name: "": the key's comment, or its type.
        now: the present.

    Raises:
        SshKeyRefused: it is no usable public key, the User has it already, or the User
            has too many.
    """
    parsed = parse_public_key(text)
    # Two requests of one User follow each other.
    User.objects.select_for_update(no_key=True, of=("self",)).get(pk=user.pk)
    rows = SshKey.objects.filter(user=user)
    known = rows.filter(fingerprint=parsed.fingerprint).first()
    if known is not None:
        words = sentence("You have this key already: “{name}”.", name=known.name)
        raise SshKeyRefused({FIELD: words})
    if rows.count() >= MOST_KEYS:
        words = sentence("You have {most} keys already. Remove one.", most=MOST_KEYS)
        raise SshKeyRefused({FIELD: words})
    key = SshKey.objects.create(
        user=user,
        name=_name(name, parsed),
        public_key=parsed.line,
        fingerprint=parsed.fingerprint,
        added_at=now,
    )
    _audit(user, "ssh-key.added", key, now)
    return key


@transaction.atomic(durable=True)
def remove_key(*, key_id: int, user: User, now: datetime) -> bool:
    """Delete one of the User's own keys. False: not theirs, or removed before."""
    key = SshKey.objects.select_for_update().filter(pk=key_id, user=user).first()
    if key is None:
        return False
    _audit(user, "ssh-key.removed", key, now)
    key.delete()
    return True


def _name(name: str, parsed: SshPublicKey) -> str:
    kind = parsed.line.partition(" ")[0]
    return (name.strip() or parsed.comment or kind)[:MOST_NAME_CHARACTERS]


def _audit(user: User, verb: str, key: SshKey, now: datetime) -> None:
    AuditEntry.objects.create(
        at=now, actor=user, verb=verb, subject=f"user:{user.pk}", reason=key.fingerprint
    )
