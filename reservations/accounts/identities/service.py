"""Sign people in by their identity, connect identities, and apply their groups."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models import F

from reservations.accounts.identities.identity_source import IdentitySource
from reservations.accounts.identities.queries import (
    bound_members,
    identities_at,
    leaving_members,
    mapping_preview,
    mapping_rows_of,
    mappings_of,
    planned_changes,
    provider_name,
)
from reservations.accounts.identities.rules import (
    OPERATOR,
    ClaimRight,
    Claims,
    Mapped,
    RightChanges,
    SignInRefused,
    check_sign_up,
)
from reservations.accounts.identities.unix_account import UnixAccount
from reservations.accounts.invitations import UNUSABLE
from reservations.accounts.openid_clients.service import end_tokens
from reservations.accounts.tree import service as accounts
from reservations.accounts.tree.tree_edits import Edit, Edited
from reservations.models import (
    Account,
    AuditEntry,
    ClaimGrant,
    ClaimMapping,
    Identity,
    Membership,
    User,
)
from reservations.rules.errors import NotFound
from reservations.rules.review import PreviewStale
from reservations.store.audit_log import audit_act
from reservations.store.unix_logins import login_fault
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import sentence

log = logging.getLogger(__name__)
PERSON_MADE = "identity.person-made"
"""In the audit log: the first sign-in of a new person."""


def sign_in(*, provider: IdentitySource, claims: Claims, now: datetime) -> User:
    """Return the person of an identity. A new person is made if the site admits them.

    Raises:
        SignInRefused: the person may not sign in, or may not get an account.
    """
    with transaction.atomic(durable=True):
        accounts.lock_tree()
        found = _identity(provider.issuer, claims.subject)
        if found is None:
            person, verb = _matched(provider, claims), "identity.linked"
            if person is None:
                person, verb = _new_person(provider, claims), PERSON_MADE
            found = _connect(person, provider, claims, verb=verb, actor=None, now=now)
        if not found.user.is_active:
            raise SignInRefused(
                sentence("You cannot sign in"),
                sentence("Your account here is switched off. Contact the lab admin."),
            )
        _see(found, claims, now)
        _give_unix_user(found, claims.unix, now)
    _apply_own(found, now)
    return found.user


def connect(
    *, user: User, provider: IdentitySource, claims: Claims, now: datetime
) -> None:
    """Let a signed-in person sign in with an identity from now on.

    Raises:
        SignInRefused: the identity is another person's, or the person has another one
            at this provider.
    """
    with transaction.atomic(durable=True):
        accounts.lock_tree()
        found = _identity(provider.issuer, claims.subject)
        if found is not None and found.user_id != user.pk:
            raise SignInRefused(
                sentence("Not connected"),
                sentence(
                    "This login at {provider} belongs to another person here. Contact "
                    "the lab admin.",
                    provider=provider.name,
                ),
                status=409,
            )
        if found is None:
            if user.identities.filter(issuer=provider.issuer).exists():
                raise SignInRefused(
                    sentence("Not connected"),
                    sentence(
                        "You are connected with another login at {provider}. The lab "
                        "admin can disconnect it.",
                        provider=provider.name,
                    ),
                    status=409,
                )
            found = _connect(
                user, provider, claims, verb="identity.linked", actor=user, now=now
            )
        _see(found, claims, now)
        _give_unix_user(found, claims.unix, now)
    _apply_own(found, now)


def disconnect(*, identity_id: int, user_id: int, actor: User, now: datetime) -> None:
    """Remove an identity. The person keeps the groups that it gave.

    The tokens that services have for the person end.

    Raises:
        NotFound: the person has no such identity.
    """
    with transaction.atomic(durable=True):
        rows = Identity.objects.filter(pk=identity_id, user_id=user_id)
        found = rows.select_for_update(no_key=True, of=("self",)).first()
        if found is None:
            raise NotFound(what=sentence("such login"))
        audit_act(
            verb="identity.removed",
            subject=f"user:{user_id}",
            actor=actor,
            now=now,
            issuer=found.issuer,
        )
        end_tokens(found.user)
        if found.name_from_provider:
            User.objects.filter(pk=user_id).update(name_from_provider=True)
        found.delete()


def _identity(issuer: str, subject: str) -> Identity | None:
    rows = Identity.objects.select_related("user")
    return rows.filter(issuer=issuer, subject=subject).first()


def _matched(provider: IdentitySource, claims: Claims) -> User | None:
    """Return the person whom an admin made for this user name, and nobody else.

    It is a person who never signed in. One who has a password, another identity or
    rights of an operator connects the identity after they have signed in.
    """
    if not provider.match_usernames or not claims.username:
        return None
    return User.objects.filter(
        username=claims.username,
        password__startswith=UNUSABLE,
        identities=None,
        last_login=None,
        is_superuser=False,
        is_staff=False,
        erased_at=None,
    ).first()


def _new_person(provider: IdentitySource, claims: Claims) -> User:
    check_sign_up(
        claims,
        mappings_of(provider.issuer),
        sign_up=provider.sign_up,
        provider=provider.name,
    )
    made = User(
        username=claims.username,
        display_name=claims.name,
        email=claims.mail,
        name_from_provider=not provider.match_usernames,
    )
    made.set_unusable_password()
    try:
        if login_fault(made, ("username",)) is not None:
            raise IntegrityError
        with transaction.atomic():
            made.save()
    except IntegrityError as error:
        raise SignInRefused(
            sentence("Another person has your user name here"),
            sentence(
                "The user name “{username}” exists already. If it is yours, sign in as "
                "before and connect {provider} on the page Settings. Otherwise contact "
                "the lab admin.",
                username=claims.username,
                provider=provider.name,
            ),
            status=409,
        ) from error
    return made


def _connect(
    person: User,
    provider: IdentitySource,
    claims: Claims,
    *,
    verb: str,
    actor: User | None,
    now: datetime,
) -> Identity:
    audit_act(
        verb=verb,
        subject=f"user:{person.pk}",
        actor=actor,
        now=now,
        issuer=provider.issuer,
    )
    return Identity.objects.create(
        user=person,
        issuer=provider.issuer,
        subject=claims.subject,
        name_from_provider=person.name_from_provider,
        created_at=now,
        seen_at=now,
    )


def _see(identity: Identity, claims: Claims, now: datetime) -> None:
    identity.seen_at = now
    if claims.groups is not None:
        identity.groups = sorted(claims.groups)
    identity.save(update_fields=["seen_at", "groups"])


# --- the Unix user ----------------------------------------------------------------


def _give_unix_user(identity: Identity, account: UnixAccount, now: datetime) -> None:
    """Give a person the Unix user that a provider says. A fault gives nothing.

    One that an admin set, or took away, stays as it is. The sign-in goes on in any
    case.
    """
    user = User.objects.get(pk=identity.user_id)
    if user.unix_user not in (identity.unix_user, account.name):
        return
    before = user.unix_user, identity.unix_uid or 0
    fault = account.fault
    if account.name and not fault:
        fault = _unix_fault(user, account)
    if fault:
        _note_unix_fault(user, fault, now)
        return
    if not account.name or (account.name, account.uid) == before:
        return
    User.objects.filter(pk=user.pk).update(unix_user=account.name)
    identity.user.unix_user = identity.unix_user = account.name
    identity.unix_uid = account.uid or None
    identity.save(update_fields=["unix_user", "unix_uid"])
    audit_act(
        verb="identity.unix-user",
        subject=f"user:{user.pk}",
        actor=None,
        now=now,
        changes={
            "unix_user": [before[0], account.name],
            "unix_uid": [before[1], account.uid],
        },
    )


def _unix_fault(user: User, account: UnixAccount) -> str:
    """Return why a person cannot have a Unix user. "": they can."""
    if account.name != user.unix_user:
        user.unix_user = account.name
        if (fault := login_fault(user, ("unix_user",))) is not None:
            return fault.text
    others = Identity.objects.exclude(user=user).filter(user__erased_at=None)
    same = others.filter(unix_uid=account.uid or None, unix_user=F("user__unix_user"))
    other = same.select_related("user").first() if account.uid else None
    if other is None:
        return ""
    return sentence("uid {uid} is that of {person}", uid=account.uid, person=other.user)


def _note_unix_fault(user: User, fault: str, now: datetime) -> None:
    """Write a fault into the audit log, unless it is the last one there."""
    verb, subject = "identity.unix-user-refused", f"user:{user.pk}"
    log.warning("Unix user of user %s: %s", user.pk, fault)
    rows = AuditEntry.objects.filter(verb=verb, subject=subject).order_by("-pk")
    if (last := rows.first()) is None or last.reason != fault:
        audit_act(verb=verb, subject=subject, actor=None, now=now, reason=fault)


# --- rights by groups -------------------------------------------------------------


def _apply_own(identity: Identity, now: datetime) -> None:
    """Apply the groups of one identity. A failure does not stop the sign-in."""
    try:
        apply_groups([identity], mappings_of(identity.issuer), actor=None, now=now)
    except CodedError as error:
        log.warning("groups of user %s: %s", identity.user_id, error)
        audit_act(
            verb="identity.groups-failed",
            subject=f"user:{identity.user_id}",
            actor=None,
            now=now,
            reason=str(error),
        )


def save_mappings(
    *, issuer: str, mappings: Sequence[Mapped], mark: str, actor: User, now: datetime
) -> dict[int, RightChanges]:
    """Replace the mappings of a provider, and apply them to the groups seen last.

    Args:
        mark: of the preview that was shown (``mapping_preview``).

    Returns:
        What changed, by identity.

    Raises:
        PreviewStale: saving would do something else than the preview said.
        EditsRefused: a member was changed meanwhile so that the tree would be wrong.
            The mappings are stored then, and the next sign-in applies them.
    """
    with transaction.atomic(durable=True):
        accounts.lock_tree()
        if mapping_preview(issuer, mappings).mark != mark:
            raise PreviewStale(
                why=sentence(
                    "People signed in, or groups changed, since this was shown. Check "
                    "the effects again."
                )
            )
        rows = mapping_rows_of(issuer)
        before = list(rows.values_list("value", "account__name", "role"))
        rows.delete()
        ClaimMapping.objects.bulk_create(
            ClaimMapping(
                issuer=issuer, value=one.value, account_id=one.account_pk, role=one.role
            )
            for one in mappings
        )
        after = list(rows.all().values_list("value", "account__name", "role"))
        if before != after:
            audit_act(
                verb="identity.mapping-changed",
                subject=f"provider:{provider_name(issuer)}",
                actor=actor,
                now=now,
                before=before,
                after=after,
            )
    return apply_groups(
        identities_at(issuer), mappings_of(issuer), actor=actor, now=now
    )


def apply_groups(
    identities: Collection[Identity],
    mappings: Iterable[Mapped],
    *,
    actor: User | None,
    now: datetime,
) -> dict[int, RightChanges]:
    """Give and take the rights that the groups of identities ask for.

    A member who holds reservations or sponsors a guest stays until the next sign-in
    after that. The last operator stays one. The audit log says so.

    Returns:
        What was asked for, by identity.

    Raises:
        EditsRefused: the tree of groups would be wrong.
    """
    plans = planned_changes(identities, mappings)
    if not plans:
        return {}
    people = {one.pk: one.user for one in identities if one.pk in plans}
    kept = _apply_operators(people, plans, actor=actor, now=now)
    leaving = leaving_members(people, plans)
    bound = bound_members(leaving)
    for pair, why in bound.items():
        kept.add((leaving[pair], ClaimRight(pair[1], "member")))
        audit_act(
            verb="identity.member-kept",
            subject=f"user:{pair[0]}",
            actor=actor,
            now=now,
            reason=why,
            account=pair[1],
        )
    edits = _edits(people, plans, {pair for pair in leaving if pair not in bound}, kept)

    in_groups = frozenset[ClaimRight]().union(*(plan.rights for plan in plans.values()))

    def note(_done: Edited | None = None) -> None:
        _store_grants(plans, in_groups - {OPERATOR}, kept, now)

    if edits:
        accounts.save(
            edits=edits,
            actor=actor,
            reason=sentence("groups of the identity provider"),
            now=now,
            check=note,
        )
    else:
        with transaction.atomic(durable=True):
            note()
    return plans


def _apply_operators(
    people: Mapping[int, User],
    plans: Mapping[int, RightChanges],
    *,
    actor: User | None,
    now: datetime,
) -> set[tuple[int, ClaimRight]]:
    """Make operators, and end operators unless one is the last. Return who is kept."""
    kept = set()
    for pk, plan in plans.items():
        if OPERATOR not in plan.gained | plan.lost | plan.noted | plan.forgotten:
            continue
        with transaction.atomic(durable=True):
            accounts.lock_tree()
            if OPERATOR in plan.gained | plan.lost and not _set_operator(
                people[pk].pk, OPERATOR in plan.gained, actor=actor, now=now
            ):
                kept.add((pk, OPERATOR))
            _store_grants({pk: plan}, {OPERATOR}, kept, now)
    return kept


def _set_operator(
    user_pk: int, becomes: bool, *, actor: User | None, now: datetime
) -> bool:
    """Make or end an operator. False: this is the last one, who stays."""
    user = User.objects.select_for_update(no_key=True, of=("self",)).get(pk=user_pk)
    others = User.objects.filter(is_superuser=True, is_active=True)
    last = not becomes and not others.exclude(pk=user.pk).exists()
    if not last:
        user.is_superuser = user.is_staff = becomes
        user.save(update_fields=["is_superuser", "is_staff"])
    ends = "identity.operator-kept" if last else "identity.operator-ended"
    verb = "identity.operator-made" if becomes else ends
    audit_act(verb=verb, subject=f"user:{user.pk}", actor=actor, now=now)
    return not last


def _edits(
    people: Mapping[int, User],
    plans: Mapping[int, RightChanges],
    leaving: set[tuple[int, int]],
    kept: set[tuple[int, ClaimRight]],
) -> list[Edit]:
    users = {user.pk for user in people.values()}
    rows = Membership.objects.filter(user__in=users, active=True)
    members = {(row.user_id, row.account_id): row for row in rows}
    names = dict(Account.objects.order_by().values_list("pk", "name"))
    edits = []
    for pk, plan in plans.items():
        user = people[pk]
        for right in sorted(plan.gained - {OPERATOR}):
            row = members.get((user.pk, right.account_pk))
            head = ClaimRight(right.account_pk, "head")
            if right.role == "member" and row is None:
                fields = {"user": user.username, "account": names[right.account_pk]}
                head_too = {"is_head": True} if head in plan.gained else {}
                edits.append(Edit("member", None, None, fields | head_too))
            elif right.role == "head" and row is not None:
                if row.is_guest:
                    # A guest cannot head a group.
                    kept.add((pk, right))
                else:
                    edits.append(Edit("member", row.pk, None, {"is_head": True}))
        for right in sorted(plan.lost - {OPERATOR}):
            pair = (user.pk, right.account_pk)
            row = members.get(pair)
            if row is None or (pk, right) in kept:
                continue
            if pair in leaving and right.role == "member":
                gone = {"active": False, "is_head": False}
                edits.append(Edit("member", row.pk, None, gone))
            elif pair not in leaving:
                edits.append(Edit("member", row.pk, None, {"is_head": False}))
    return edits


def _store_grants(
    plans: Mapping[int, RightChanges],
    rights: Collection[ClaimRight],
    kept: Collection[tuple[int, ClaimRight]],
    now: datetime,
) -> None:
    """Write which rights the claims gave, in the transaction that gives them."""
    new = []
    for pk, plan in plans.items():
        done = {right for right in rights if (pk, right) not in kept}
        for right in done & (plan.lost | plan.forgotten):
            ClaimGrant.objects.filter(
                identity=pk, account=right.account_pk or None, role=right.role
            ).delete()
        new += [
            ClaimGrant(
                identity_id=pk,
                account_id=right.account_pk or None,
                role=right.role,
                created_at=now,
            )
            for right in sorted(done & (plan.gained | plan.noted))
        ]
    ClaimGrant.objects.bulk_create(new)
