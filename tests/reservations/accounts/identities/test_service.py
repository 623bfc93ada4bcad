"""Groups of an identity in the database: who joins, who stays, who is written down."""

from dataclasses import replace
from datetime import timedelta

import pytest
from django.utils import timezone

from gpuportal.alerts.calendar_judge import load_logins
from reservations.accounts import erasure, invitations
from reservations.accounts.identities import service
from reservations.accounts.identities.provider_settings import Provider
from reservations.accounts.identities.queries import mapping_preview
from reservations.accounts.identities.rules import Claims, Mapped, SignInRefused
from reservations.accounts.openid_clients.queries import username_for_services
from reservations.models import (
    Account,
    AuditEntry,
    ClaimGrant,
    ClaimMapping,
    Identity,
    Membership,
    Reservation,
    User,
)
from reservations.rules.errors import NotFound
from reservations.rules.review import PreviewStale
from reservations.store.unix_logins import unix_login
from tests.factories import (
    make_account,
    make_gpus,
    make_membership,
    make_reservation,
    make_user,
)

pytestmark = pytest.mark.django_db
UNI = Provider("uni", "Uni Example", "https://sso.uni.example", "c", "s")
OPEN = Provider("uni", "Uni", UNI.issuer, "c", "s", sign_up="all")
MATCHING = Provider("uni", "Uni", UNI.issuer, "c", "s", match_usernames=True)


def claims(name: str, *groups: str, missing: bool = False) -> Claims:
    found = None if missing else frozenset(groups)
    return Claims(f"sub-{name}", name, name.title(), f"{name}@uni.example", found)


def sign_in(name: str, *groups: str, missing: bool = False, provider=UNI) -> User:
    who = claims(name, *groups, missing=missing)
    return service.sign_in(provider=provider, claims=who, now=timezone.now())


def give(value: str, account: str | None, role: str = "member") -> None:
    where = make_account(account) if account else None
    ClaimMapping.objects.create(
        issuer=UNI.issuer, value=value, account=where, role=role
    )


def verbs(user: User) -> list[str]:
    rows = AuditEntry.objects.filter(subject=f"user:{user.pk}").order_by("pk")
    return list(rows.values_list("verb", flat=True))


def groups_of(user: User) -> set[str]:
    rows = user.memberships.filter(active=True)
    return {row.account.name + ("*" if row.is_head else "") for row in rows}


def test_a_group_lets_a_person_in_and_out(omar):
    give("gpu", "vision")
    give("gpu-heads", "vision", "head")
    ada = sign_in("ada", "gpu")
    assert groups_of(ada) == {"vision"}
    assert groups_of(sign_in("ada", "gpu", "gpu-heads")) == {"vision*"}
    assert groups_of(sign_in("ada", missing=True)) == {"vision*"}
    assert groups_of(sign_in("ada", "gpu")) == {"vision"}
    assert groups_of(sign_in("ada")) == set()
    assert not ClaimGrant.objects.exists()
    # Every change has its row and its history.
    assert AuditEntry.objects.filter(verb="tree.edit", actor=None).count() == 4
    assert groups_of(sign_in("ada", "gpu")) == {"vision"}


def test_members_added_by_hand_stay(omar):
    give("gpu", "vision")
    ada = sign_in("ada", provider=OPEN)
    make_membership(ada, "vision")
    make_membership(ada, "nlp")
    sign_in("ada", "gpu")
    assert not ClaimGrant.objects.exists()
    assert groups_of(sign_in("ada")) == {"vision", "nlp"}


@pytest.mark.once
def test_a_holder_of_reservations_stays_until_they_end(omar):
    give("gpu", "vision")
    ada = sign_in("ada", "gpu")
    held = make_reservation(ada, make_gpus(1))
    assert groups_of(sign_in("ada")) == {"vision"}
    assert verbs(ada)[-1] == "identity.member-kept"
    Reservation.objects.filter(pk=held.pk).update(state="completed")
    assert groups_of(sign_in("ada")) == set()


@pytest.mark.once
def test_a_holder_of_reservations_does_not_stay_a_head(omar):
    give("heads", "vision", "head")
    ada = sign_in("ada", "heads")
    held = make_reservation(ada, make_gpus(1))
    assert groups_of(ada) == {"vision*"}
    assert groups_of(sign_in("ada")) == {"vision"}
    assert [grant.role for grant in ClaimGrant.objects.all()] == ["member"]
    Reservation.objects.filter(pk=held.pk).update(state="completed")
    assert groups_of(sign_in("ada")) == set()


def test_a_sponsor_of_a_guest_stays(omar, bob):
    give("gpu", "vision")
    ada = sign_in("ada", "gpu")
    ends = timezone.now() + timedelta(days=3)
    Membership.objects.filter(user=bob).update(sponsor=ada, expires_at=ends)
    assert groups_of(sign_in("ada")) == {"vision"}
    assert AuditEntry.objects.get(verb="identity.member-kept").reason == (
        "sponsors a guest"
    )


def test_a_guest_does_not_become_a_head(omar, alice, bob):
    give("heads", "vision", "head")
    ends = timezone.now() + timedelta(days=3)
    Membership.objects.filter(user=bob).update(sponsor=alice, expires_at=ends)
    now = timezone.now()
    service.connect(user=bob, provider=UNI, claims=claims("bob", "heads"), now=now)
    assert groups_of(bob) == {"vision"}
    assert not ClaimGrant.objects.exists()


def test_the_last_operator_stays():
    give("admins", None, "operator")
    ada = sign_in("ada", "admins")
    assert User.objects.get(pk=ada.pk).is_operator
    sign_in("ada")
    assert User.objects.get(pk=ada.pk).is_operator
    assert verbs(ada)[-1] == "identity.operator-kept"
    make_user("omar", is_superuser=True, is_active=False)
    sign_in("ada")
    assert User.objects.get(pk=ada.pk).is_operator
    bea = sign_in("bea", "admins")
    sign_in("ada")
    ended = User.objects.get(pk=ada.pk)
    assert not ended.is_superuser and not ended.is_staff
    assert verbs(ada)[-1] == "identity.operator-ended"
    assert User.objects.get(pk=bea.pk).is_operator


def test_an_operator_made_by_hand_stays(omar):
    give("admins", None, "operator")
    make_user("other", is_superuser=True)
    now = timezone.now()
    for groups in (("admins",), ()):
        who = claims("omar", *groups)
        service.connect(user=omar, provider=UNI, claims=who, now=now)
    assert User.objects.get(pk=omar.pk).is_operator


def test_an_archived_group_gives_nothing(omar):
    give("gpu", "vision")
    account = make_account("vision")
    account.archived_at = timezone.now()
    account.save()
    with pytest.raises(SignInRefused):
        sign_in("ada", "gpu")


def test_a_group_that_cannot_be_changed_does_not_stop_the_sign_in(omar, monkeypatch):
    give("gpu", "vision")

    def refuse(**_more):
        raise service.NotFound(what="a cause")

    monkeypatch.setattr(service.accounts, "save", refuse)
    ada = sign_in("ada", "gpu")
    assert verbs(ada) == ["identity.person-made", "identity.groups-failed"]


def test_a_person_whom_an_admin_made_is_matched_only_if_the_site_says_so(omar):
    ada = make_user("ada")
    ada.set_unusable_password()
    ada.save()
    give("gpu", "vision")
    with pytest.raises(SignInRefused, match="exists already"):
        sign_in("ada", "gpu")
    assert sign_in("ada", "gpu", provider=MATCHING) == ada
    assert verbs(ada) == ["identity.linked"]


@pytest.mark.parametrize(
    "fields",
    [
        {"is_superuser": True},
        {"is_staff": True},
        {"password": "md5$x$y"},
        {"last_login": timezone.now()},
    ],
)
def test_nobody_else_is_matched(omar, fields):
    ada = make_user("ada")
    ada.set_unusable_password()
    for name, value in fields.items():
        setattr(ada, name, value)
    ada.save()
    give("gpu", "vision")
    with pytest.raises(SignInRefused, match="exists already"):
        sign_in("ada", "gpu", provider=MATCHING)
    assert not Identity.objects.exists()


def test_the_unix_login_of_another_person_is_no_user_name(omar, alice):
    User.objects.filter(pk=alice.pk).update(unix_user="ada")
    with pytest.raises(SignInRefused, match="exists already"):
        sign_in("ada", provider=OPEN)


def test_a_name_that_the_provider_chose_is_no_unix_login(omar, alice):
    ada = sign_in("ada", provider=OPEN)
    bo = sign_in("bo", provider=replace(OPEN, match_usernames=True))
    service.connect(user=alice, provider=UNI, claims=claims("al"), now=timezone.now())
    assert (unix_login(ada), unix_login(bo), unix_login(alice)) == ("", "bo", "alice")
    assert {"bo", "alice"} <= load_logins().keys() and "ada" not in load_logins()
    # Release 0.1.0 reads it in the identity.
    rows = Identity.objects.filter(name_from_provider=True)
    assert [row.user for row in rows] == [ada]
    User.objects.filter(pk=ada.pk).update(unix_user="adal")
    ada.refresh_from_db()
    assert unix_login(ada) == "adal" and load_logins()["adal"] == ada.pk


@pytest.mark.parametrize("release", ["this", "0.1.0"])
def test_a_name_that_a_person_chose_is_no_unix_login_after_the_login_is_gone(
    omar, release
):
    ada = sign_in("ada", provider=OPEN)
    if release == "0.1.0":
        User.objects.update(name_from_provider=False)
        ada.refresh_from_db()
        assert unix_login(ada) == "" and username_for_services(ada) == ""
        assert "ada" not in load_logins() and "omar" in load_logins()
    service.disconnect(
        identity_id=Identity.objects.get().pk,
        user_id=ada.pk,
        actor=omar,
        now=timezone.now(),
    )
    ada.refresh_from_db()
    assert unix_login(ada) == "" and username_for_services(ada) == ""
    assert "ada" not in load_logins()


def test_a_second_login_at_one_provider_is_refused(alice):
    now = timezone.now()
    service.connect(user=alice, provider=UNI, claims=claims("alice"), now=now)
    with pytest.raises(SignInRefused, match="another login"):
        service.connect(user=alice, provider=UNI, claims=claims("other"), now=now)


def test_an_admin_disconnects_a_login(omar, alice):
    now = timezone.now()
    service.connect(user=alice, provider=UNI, claims=claims("alice"), now=now)
    identity = Identity.objects.get()
    for user_id in (omar.pk, 10**6):
        with pytest.raises(NotFound):
            service.disconnect(
                identity_id=identity.pk, user_id=user_id, actor=omar, now=now
            )
    service.disconnect(identity_id=identity.pk, user_id=alice.pk, actor=omar, now=now)
    assert groups_of(alice) == {"vision"}
    assert verbs(alice) == ["identity.linked", "identity.removed"]


def test_erasure_deletes_the_identity(omar):
    ada = sign_in("ada", provider=OPEN)
    erasure.erase(user_id=ada.pk, typed="ada", actor=omar, now=timezone.now())
    assert not Identity.objects.exists()


def test_people_with_a_login_get_no_invitation(omar):
    ada = sign_in("ada", provider=OPEN)
    made = invitations.invite(user_ids=[ada.pk], actor=omar, now=timezone.now())
    assert made == []


def test_saving_a_mapping_does_what_the_preview_said(omar):
    vision = make_account("vision")
    people = [sign_in(f"p{n}", "gpu", provider=OPEN) for n in range(3)]
    other = sign_in("other", "sports", provider=OPEN)
    mappings = [Mapped("gpu", vision.pk, "member")]
    found = mapping_preview(UNI.issuer, mappings)
    assert found.effects == ["3 people would join Vision."] and found.changes
    values = {"issuer": UNI.issuer, "mappings": mappings, "actor": omar}
    now = timezone.now()
    with pytest.raises(PreviewStale):
        service.save_mappings(**values, mark="other", now=now)
    assert not ClaimMapping.objects.exists()
    service.save_mappings(**values, mark=found.mark, now=now)
    assert {p.pk for p in people} == set(
        vision.memberships.filter(active=True).values_list("user", flat=True)
    )
    assert groups_of(other) == set()
    row = AuditEntry.objects.get(verb="identity.mapping-changed")
    assert row.actor == omar and row.detail["after"] == [["gpu", "vision", "member"]]
    # A sign-in with other groups makes a preview old.
    empty = mapping_preview(UNI.issuer, [])
    assert empty.effects == ["3 people would leave Vision."]
    sign_in("p0")
    with pytest.raises(PreviewStale):
        service.save_mappings(**values | {"mappings": []}, mark=empty.mark, now=now)
    again = mapping_preview(UNI.issuer, [])
    assert again.effects == ["2 people would leave Vision."]
    service.save_mappings(**values | {"mappings": []}, mark=again.mark, now=now)
    assert not vision.memberships.filter(active=True).exists()


def test_saving_keeps_the_mappings_of_an_archived_group(omar):
    give("old", "vision")
    Account.objects.filter(name="vision").update(archived_at=timezone.now())
    preview = mapping_preview(UNI.issuer, [])
    assert not preview.changes
    service.save_mappings(
        issuer=UNI.issuer,
        mappings=[],
        mark=preview.mark,
        actor=omar,
        now=timezone.now(),
    )
    assert ClaimMapping.objects.get().value == "old"


def test_another_provider_has_other_mappings(omar):
    give("gpu", "vision")
    partner = Provider("p", "Partner", "https://p.example", "c", "s", sign_up="all")
    assert groups_of(sign_in("ada", "gpu", provider=partner)) == set()
