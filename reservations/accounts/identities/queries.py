"""Mappings, identities and the rights of their people, as values for the rules."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from django.conf import settings
from django.db.models import Q, QuerySet

from reservations.accounts.identities.directory_settings import Directory
from reservations.accounts.identities.identity_source import IdentitySource
from reservations.accounts.identities.provider_settings import Provider
from reservations.accounts.identities.rules import (
    ClaimRight,
    Holder,
    Mapped,
    RightChanges,
    effect_sentences,
    right_changes,
    role_of,
)
from reservations.accounts.identities.saml_settings import SamlProvider
from reservations.models import (
    Account,
    ClaimGrant,
    ClaimMapping,
    Identity,
    Membership,
    Reservation,
    User,
)
from reservations.rules.review import mark_of
from telemetry.protocol.sentences import Sentence


def providers() -> tuple[Provider, ...]:
    """Return the identity providers of the site, in the order of its settings."""
    found: tuple[Provider, ...] = settings.LOGIN_SETTINGS.providers
    return found


def directory() -> Directory | None:
    """Return the LDAP directory of the site, if it has one."""
    found: Directory | None = settings.LOGIN_SETTINGS.directory
    return found


def sources_with_redirect() -> tuple[IdentitySource, ...]:
    """Return the OpenID and SAML providers, to which the sign-in page leads."""
    found: tuple[IdentitySource, ...] = settings.LOGIN_SETTINGS.with_redirect
    return found


def saml_provider() -> SamlProvider | None:
    """Return the SAML provider of the site, if it has one."""
    found: SamlProvider | None = settings.LOGIN_SETTINGS.saml
    return found


def identity_sources() -> tuple[IdentitySource, ...]:
    """Return the identity providers and the directory."""
    found: tuple[IdentitySource, ...] = settings.LOGIN_SETTINGS.sources
    return found


def provider_named(key: str) -> Provider | None:
    """Return the provider with a key."""
    return next((one for one in providers() if one.key == key), None)


def provider_name(issuer: str) -> str:
    """Return the name of an issuer, or its address if it was taken off the settings."""
    return next(
        (one.name for one in identity_sources() if one.issuer == issuer), issuer
    )


def mappings_of(issuer: str) -> list[Mapped]:
    """Return what the groups of a provider give. Archived Accounts give nothing."""
    return [
        Mapped(row.value, row.account_id, role_of(row.role))
        for row in mapping_rows_of(issuer)
    ]


def mapping_rows_of(issuer: str) -> QuerySet[ClaimMapping]:
    """Return the stored mappings of a provider, without those of archived Accounts."""
    return ClaimMapping.objects.filter(issuer=issuer).filter(
        Q(account=None) | Q(account__archived_at=None)
    )


def identities_at(issuer: str) -> list[Identity]:
    """Return identities whose groups are known and whose person may sign in."""
    rows = Identity.objects.filter(issuer=issuer, user__is_active=True)
    return list(rows.exclude(groups=None).select_related("user").order_by("pk"))


def holders(identities: Collection[Identity]) -> dict[int, Holder]:
    """Return the rights of each identity's person, by identity, in two queries."""
    users = {one.user_id for one in identities}
    members: dict[int, set[int]] = defaultdict(set)
    heads: dict[int, set[int]] = defaultdict(set)
    rows = Membership.objects.filter(user__in=users, active=True).order_by()
    for user, account, is_head in rows.values_list("user", "account", "is_head"):
        members[user].add(account)
        if is_head:
            heads[user].add(account)
    granted: dict[int, dict[int, set[ClaimRight]]] = defaultdict(
        lambda: defaultdict(set)
    )
    grants = ClaimGrant.objects.filter(identity__user__in=users).order_by()
    for user, identity, account, role in grants.values_list(
        "identity__user", "identity", "account", "role"
    ):
        granted[user][identity].add(ClaimRight(account or 0, role_of(role)))
    return {
        one.pk: Holder(
            members=frozenset(members[one.user_id]),
            heads=frozenset(heads[one.user_id]),
            operator=one.user.is_superuser,
            granted=frozenset(granted[one.user_id][one.pk]),
            granted_elsewhere=frozenset().union(
                *(
                    rights
                    for identity, rights in granted[one.user_id].items()
                    if identity != one.pk
                )
            ),
        )
        for one in identities
    }


def planned_changes(
    identities: Collection[Identity], mappings: Iterable[Mapped]
) -> dict[int, RightChanges]:
    """Return what mappings change, by identity. Those without a change are left out."""
    mappings = list(mappings)
    held = holders(identities)
    plans = {
        one.pk: right_changes(
            None if one.groups is None else frozenset(one.groups),
            mappings,
            held[one.pk],
        )
        for one in identities
    }
    return {pk: plan for pk, plan in plans.items() if plan.rights}


def bound_members(rights: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str]:
    """Return the (User, Account) pairs that cannot end yet, with the reason.

    Nobody would pay for the bookings of a removed member, and a guest needs a sponsor.
    """
    pairs = set(rights)
    users = {user for user, _account in pairs}
    found = {}
    live = Reservation.objects.live().filter(user__in=users).order_by()
    for pair in live.values_list("user", "membership__account").distinct():
        if pair in pairs:
            found[pair] = "holds reservations"
    guests = Membership.objects.filter(sponsor__in=users, active=True).order_by()
    for user, account in guests.values_list("sponsor", "account").distinct():
        if user is not None and (user, account) in pairs:
            found[user, account] = "sponsors a guest"
    return found


def leaving_members(
    people: Mapping[int, User], plans: Mapping[int, RightChanges]
) -> dict[tuple[int, int], int]:
    """Return the (User, Account) pairs that plans end, with the identity."""
    return {
        (people[pk].pk, right.account_pk): pk
        for pk, plan in plans.items()
        for right in plan.lost
        if right.role == "member"
    }


@dataclass(frozen=True)
class MappingPreview:
    """What replacing the mappings of a provider would do."""

    mark: str
    effects: Sequence[Sentence]
    changes: bool
    """Whether the mappings differ from the stored ones."""


def mapping_preview(issuer: str, mappings: Sequence[Mapped]) -> MappingPreview:
    """Compare mappings with the groups that were seen at the last sign-ins."""
    identities = identities_at(issuer)
    accounts = {one.pk: str(one) for one in Account.objects.order_by()}
    plans = planned_changes(identities, mappings)
    people = {one.pk: one.user for one in identities}
    bound = bound_members(leaving_members(people, plans))
    stored = mapping_rows_of(issuer)
    before = sorted(
        [value, account or 0, role]
        for value, account, role in stored.values_list("value", "account_id", "role")
    )
    after = sorted([one.value, one.account_pk or 0, one.role] for one in mappings)
    facts = [
        [pk, *(sorted(map(str, rights)) for rights in (plan.gained, plan.lost))]
        for pk, plan in sorted(plans.items())
    ]
    return MappingPreview(
        mark=mark_of([before, after, facts]),
        effects=effect_sentences(plans.values(), accounts, bound=len(bound)),
        changes=before != after,
    )


def seen_values(identities: Iterable[Identity]) -> list[tuple[str, int]]:
    """Return the values of the groups claim with how many people have each."""
    counts: dict[str, int] = defaultdict(int)
    for one in identities:
        for value in one.groups or ():
            counts[value] += 1
    return sorted(counts.items(), key=lambda row: (-row[1], row[0]))


def ways_in(user: User) -> list[Mapping[str, object]]:
    """Return each provider with whether a person is connected there."""
    own = {one.issuer: one for one in user.identities.all()}
    return [
        {
            "provider": one,
            "identity": own.get(one.issuer),
            "directory": one == directory(),
        }
        for one in identity_sources()
    ]
