"""What a provider's claims say about a person, and what their groups give them.

Only rights that a claim gave are taken away again. A person who was made a member by
hand stays one. A sign-in without the groups claim changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from reservations.accounts.identities.unix_account import (
    NO_ACCOUNT,
    UnixAccount,
    read_unix_account,
)
from reservations.accounts.tree.tree_edits import LOGIN
from telemetry.protocol.sentences import Sentence, counted, sentence

Role = Literal["member", "head", "operator"]
LONGEST_VALUE = 255
MOST_GROUPS = 1000
"""Most values of a groups claim. More are ignored like a missing claim."""


class SignInRefused(Exception):
    """A person cannot sign in. ``title`` and ``why`` are for them."""

    def __init__(self, title: Sentence, why: Sentence, *, status: int = 403) -> None:
        self.title, self.why, self.status = title, why, status
        super().__init__(why)


@dataclass(frozen=True)
class Claims:
    """What an ID token says about a person."""

    subject: str
    username: str
    """"" if the provider sent none."""
    name: str
    mail: str
    """"" if it sent none, or says that it is not verified."""
    groups: frozenset[str] | None
    """None: the claim is missing."""
    unix: UnixAccount = NO_ACCOUNT


@dataclass(frozen=True)
class Mapped:
    """What one value of the groups claim gives. ``account_pk`` None: operators."""

    value: str
    account_pk: int | None
    role: Role


@dataclass(frozen=True, order=True)
class ClaimRight:
    """A role in an Account. ``account_pk`` 0: an operator of the site."""

    account_pk: int
    role: Role


def role_of(text: str) -> Role:
    """Return a stored role. An unknown one is the least."""
    return "operator" if text == "operator" else "head" if text == "head" else "member"


OPERATOR = ClaimRight(0, "operator")


@dataclass(frozen=True)
class Holder:
    """A person's rights as they are, and which of them claims gave."""

    members: frozenset[int]
    """Accounts in which they are an active member."""
    heads: frozenset[int]
    operator: bool
    granted: frozenset[ClaimRight]
    """Given by this identity."""
    granted_elsewhere: frozenset[ClaimRight] = frozenset()
    """Given by other identities of the same person."""


@dataclass(frozen=True)
class RightChanges:
    """What a sign-in changes."""

    gained: frozenset[ClaimRight] = frozenset()
    """To give, and to note as given by the claim."""
    noted: frozenset[ClaimRight] = frozenset()
    """Already given by another identity: only note it."""
    lost: frozenset[ClaimRight] = frozenset()
    """To take away."""
    forgotten: frozenset[ClaimRight] = frozenset()
    """No longer given by the claim, but the person keeps it, or lost it before."""

    @property
    def rights(self) -> frozenset[ClaimRight]:
        """All of them. Empty: there is nothing to store."""
        return self.gained | self.noted | self.lost | self.forgotten


def read_claims(
    raw: Mapping[str, Any],
    *,
    username_claim: str,
    groups_claim: str,
    unix_user_claim: str = "",
    unix_uid_claim: str = "",
) -> Claims:
    """Read the claims of a verified ID token.

    Args:
        groups_claim: its name. Dots lead into objects: `realm_access.roles`.
        unix_user_claim: "": the provider does not say the Unix user.
        unix_uid_claim: "": it does not say the uid.

    Raises:
        SignInRefused: the subject is missing or longer than 255 characters (OpenID
            Connect Core 1.0, section 2).

    >>> read_claims({"sub": "7", "groups": "vision"}, username_claim="x",
    ...     groups_claim="groups").groups
    frozenset({'vision'})
    """
    subject = raw.get("sub")
    if not isinstance(subject, str) or not _storable(subject, 255):
        raise SignInRefused(
            sentence("The answer of the provider is not valid"),
            sentence("It does not say who you are."),
            status=502,
        )
    mail = _text(raw.get("email"), 254)
    return Claims(
        subject=subject,
        username=_text(raw.get(username_claim), 150),
        name=_text(raw.get("name"), 80),
        mail=mail if "@" in mail and _is_verified(raw) else "",
        groups=read_groups(_inside(raw, groups_claim)),
        unix=read_unix_account(
            _inside(raw, unix_user_claim) if unix_user_claim else None,
            _inside(raw, unix_uid_claim) if unix_uid_claim else None,
            needs_uid=bool(unix_uid_claim),
        ),
    )


def read_groups(raw: object) -> frozenset[str] | None:
    """Return the values of a groups claim. None: missing or unreadable.

    >>> read_groups(["b", "a", 7]) == {"a", "b"}, read_groups({}), read_groups([])
    (True, None, frozenset())
    """
    if isinstance(raw, str):
        raw = [raw] if raw else []
    if not isinstance(raw, list) or len(raw) > MOST_GROUPS:
        return None
    return frozenset(
        value
        for value in raw
        if isinstance(value, str) and _storable(value, LONGEST_VALUE)
    )


def _storable(text: str, longest: int) -> bool:
    """Return whether a database can store a text: no NUL, no half of a character."""
    halves = any("\ud800" <= one <= "\udfff" for one in text)
    return 0 < len(text) <= longest and "\0" not in text and not halves


def _is_verified(raw: Mapping[str, Any]) -> bool:
    # Some providers send the claim as text.
    return str(raw.get("email_verified")).lower() != "false"


def _inside(raw: Mapping[str, Any], name: str) -> object:
    if name in raw:
        return raw[name]
    found: object = raw
    for part in name.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


def _text(value: object, longest: int) -> str:
    if not isinstance(value, str) or not value.isprintable() or len(value) > longest:
        return ""
    return value.strip()


def wanted_rights(
    groups: Collection[str], mappings: Iterable[Mapped]
) -> frozenset[ClaimRight]:
    """Return what the values of a claim give. A head is a member too."""
    found: set[ClaimRight] = set()
    for one in mappings:
        if one.value not in groups:
            continue
        if one.role == "operator":
            found.add(OPERATOR)
        elif one.account_pk is not None:
            found.add(ClaimRight(one.account_pk, "member"))
            if one.role == "head":
                found.add(ClaimRight(one.account_pk, "head"))
    return frozenset(found)


def right_changes(
    groups: Collection[str] | None, mappings: Iterable[Mapped], holder: Holder
) -> RightChanges:
    """Compare what the claim gives with what a person has.

    Args:
        groups: None: the claim was missing, so nothing changes.
    """
    if groups is None:
        return RightChanges()
    wanted = wanted_rights(groups, mappings)
    has = _held(holder)
    surplus = holder.granted - wanted
    kept_by_other = surplus & holder.granted_elsewhere
    lost = (surplus & has) - kept_by_other
    # A head who leaves the group loses the head's role with the membership.
    return RightChanges(
        gained=wanted - has,
        noted=(wanted & has & holder.granted_elsewhere) - holder.granted,
        lost=lost,
        forgotten=surplus - lost,
    )


def _held(holder: Holder) -> frozenset[ClaimRight]:
    rights = {ClaimRight(pk, "member") for pk in holder.members}
    rights |= {ClaimRight(pk, "head") for pk in holder.heads & holder.members}
    if holder.operator:
        rights.add(OPERATOR)
    return frozenset(rights)


def effect_sentences(
    plans: Iterable[RightChanges], names: Mapping[int, str], *, bound: int
) -> list[Sentence]:
    """Say what a change of the mappings does to the people seen so far.

    Args:
        names: of the Accounts, by key.
        bound: how many people cannot leave a group yet.
    """
    gained: Counter[ClaimRight] = Counter()
    lost: Counter[ClaimRight] = Counter()
    for plan in plans:
        gained.update(plan.gained)
        lost.update(plan.lost)
    found = []
    for right in sorted(gained | lost):
        account = names.get(right.account_pk, "")
        joins, leaves = gained[right], lost[right]
        if joins:
            found.append(_gain_sentence(right.role, joins, account))
        if leaves:
            found.append(_loss_sentence(right.role, leaves, account))
    if bound:
        found.append(
            counted(
                "{n} person holds reservations or sponsors a guest. The first sign-in "
                "after these have ended removes the membership.",
                "{n} people hold reservations or sponsor guests. The first sign-in "
                "after these have ended removes the membership.",
                bound,
            )
        )
    return found


def _gain_sentence(role: Role, people: int, account: str) -> Sentence:
    if role == "operator":
        return counted(
            "{n} person would become an admin of the portal.",
            "{n} people would become admins of the portal.",
            people,
        )
    if role == "head":
        return counted(
            "{n} person would become a head of {account}.",
            "{n} people would become heads of {account}.",
            people,
            account=account,
        )
    return counted(
        "{n} person would join {account}.",
        "{n} people would join {account}.",
        people,
        account=account,
    )


def _loss_sentence(role: Role, people: int, account: str) -> Sentence:
    if role == "operator":
        return counted(
            "{n} person would no longer be an admin. The last admin stays one.",
            "{n} people would no longer be admins. The last admin stays one.",
            people,
        )
    if role == "head":
        return counted(
            "{n} person would no longer be a head of {account}.",
            "{n} people would no longer be heads of {account}.",
            people,
            account=account,
        )
    return counted(
        "{n} person would leave {account}.",
        "{n} people would leave {account}.",
        people,
        account=account,
    )


def check_sign_up(
    claims: Claims, mappings: Iterable[Mapped], *, sign_up: str, provider: str
) -> None:
    """Refuse a new person whom the site does not admit.

    Raises:
        SignInRefused: nobody may sign up, or no group of the person is mapped, or the
            provider sent no user name that the portal can use.
    """
    title = sentence("You have no account here yet")
    if sign_up == "off":
        raise SignInRefused(
            title,
            sentence(
                "{provider} knows you, but only the lab admin makes accounts here. "
                "If you have a password for this portal, sign in with it and connect "
                "{provider} on the page Settings.",
                provider=provider,
            ),
        )
    if sign_up == "mapped" and not wanted_rights(claims.groups or (), mappings):
        raise SignInRefused(
            title,
            sentence(
                "{provider} knows you, but none of your groups there has access to "
                "this portal. Ask the lab admin.",
                provider=provider,
            ),
        )
    if not LOGIN.fullmatch(claims.username):
        raise SignInRefused(
            title,
            sentence(
                "{provider} sent no user name that this portal can use. Ask the lab "
                "admin to choose another claim for it.",
                provider=provider,
            ),
        )
