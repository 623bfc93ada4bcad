"""Certificates for users' ssh keys, and the principals that a node accepts."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import transaction

from placement.access.access_target import AccessTarget, access_target
from placement.access.ssh_authority import (
    authority_line,
    new_serial,
    principal,
    user_certificate,
)
from placement.protocol.ssh_access import ACCOUNT_NAME, SshAccess, SshAccount
from reservations.accounts.ssh_keys.public_key import parse_public_key
from reservations.models import Allocation, AuditEntry, CoUser, SshKey, User
from reservations.web.rate_limits import check_rate
from telemetry.models import Node
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence

LONGEST = timedelta(hours=24)
"""A certificate of a longer reservation is renewed."""
PER_MINUTE = 60
VALID_SECONDS = 60.0
"""How long a node may take an answer with principals for current."""
MOST_PRINCIPALS = 2000
"""Principals of one node, so that the list stays below the size of an order."""


@dataclass(frozen=True, slots=True)
class SshCertificate:
    """A certificate for one key, and where it is good for."""

    line: str
    target: AccessTarget
    until: datetime

    @property
    def account(self) -> str:
        """The user's name on the node."""
        return self.target.unix_user


def issue_certificate(
    user: User, reservation_pk: int, public_key: str, *, node_name: str, now: datetime
) -> SshCertificate:
    """Make a certificate for a stored key of the user.

    Args:
        user: owner or co-user of the reservation.
        reservation_pk: of the reservation, which must be active.
        public_key: line of a ``.pub`` file.
        node_name: one of its nodes; "": the first by name.
        now: the present.

    Raises:
        SshKeyRefused: it is no public key.
        NotFound, StreamRefused: see ``access_target``.
        RequestRefused: the user has no Unix account, or has not stored this key.
        TooFast: too many certificates in a minute.
    """
    check_rate("ssh-certificate", user_pk=user.pk, per_minute=PER_MINUTE, now=now)
    parsed = parse_public_key(public_key)
    target = access_target(user, reservation_pk, now, node_name=node_name)
    if not target.unix_user:
        words = sentence(
            "The portal does not know your Unix account on {node}. Ask the operator "
            "to set it. With your own key or password: gp.py ssh {number} --user NAME",
            node=target.node,
            number=target.reservation,
        )
        raise RequestRefused("ssh-no-account", words)
    until = min(target.until, now + LONGEST)
    serial = new_serial()
    with transaction.atomic(durable=True):
        key = SshKey.objects.filter(user=user, fingerprint=parsed.fingerprint).first()
        if key is None:
            words = sentence(
                "{fingerprint} is not among your ssh keys. Add it on the page "
                "Settings, or with: gp.py keys add FILE",
                fingerprint=parsed.fingerprint,
            )
            raise RequestRefused("ssh-key-unknown", words)
        SshKey.objects.filter(pk=key.pk).update(last_used_at=now)
        AuditEntry.objects.create(
            at=now,
            actor=user,
            verb="ssh-certificate.issued",
            subject=f"reservation:{target.reservation}",
            reason=f"{key.fingerprint}, serial {serial}",
        )
    line = user_certificate(
        key.public_key,
        principals=[principal(target.reservation, user.pk, key.pk)],
        key_id=f"{user.username} r{target.reservation} k{key.pk}",
        serial=serial,
        now=now,
        until=until,
    )
    return SshCertificate(line, target, until)


def access_of(node: Node, now: datetime) -> SshAccess:
    """Return which principals a node accepts now, by Unix name.

    By the live allocations whose window runs now, like ``access_target``: release,
    displacement, a removed co-user and a removed key all count. Only the operator sets
    the Unix account of a user. A login is never taken for one, because heads choose
    the logins of those that they invite.
    """
    running = Allocation.objects.filter(
        gpu__node=node, live=True, start__lte=now, end__gt=now
    )
    holders = set(
        running.values_list("reservation_id", "reservation__user_id").distinct()
    )
    numbers = {number for number, _user in holders}
    shared = CoUser.objects.sharing().filter(reservation__in=numbers)
    holders |= set(shared.values_list("reservation_id", "user_id"))
    keys = defaultdict(list)
    rows = SshKey.objects.filter(
        user__in={user for _number, user in holders}, user__is_active=True
    ).select_related("user")
    for key in rows:
        keys[key.user_id].append(key)
    accounts = defaultdict(list)
    pairs = [(number, key) for number, user in sorted(holders) for key in keys[user]]
    for number, key in pairs[:MOST_PRINCIPALS]:
        name = key.user.unix_user
        if ACCOUNT_NAME.fullmatch(name):
            accounts[name].append(principal(number, key.user_id, key.pk))
    issued_at = now.timestamp()
    return SshAccess(
        kind="ssh",
        node=node.name,
        issued_at=issued_at,
        expires_at=issued_at + VALID_SECONDS,
        authority=authority_line(),
        accounts=tuple(
            SshAccount(name, tuple(found)) for name, found in sorted(accounts.items())
        ),
    )
