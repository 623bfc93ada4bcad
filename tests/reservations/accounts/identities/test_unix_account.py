"""Unix users by the claims of a login: who gets one, and who does not."""

import pytest
from django.utils import timezone

from reservations.accounts.identities import service
from reservations.accounts.identities.provider_settings import Provider
from reservations.accounts.identities.rules import Claims, read_claims
from reservations.accounts.identities.unix_account import (
    NO_ACCOUNT,
    UnixAccount,
    read_unix_account,
)
from reservations.accounts.people import set_unix_users
from reservations.models import AuditEntry, Identity, User
from reservations.store.unix_logins import unix_uid
from tests.factories import make_user

pytestmark = pytest.mark.django_db
UNI = Provider("uni", "Uni", "https://sso.example", "c", "s", sign_up="all")
NAMES = {"unix_user_claim": "posix.name", "unix_uid_claim": "uidNumber"}


def sign_in(name: str, unix: str = "", uid: int = 0, provider=UNI, **more) -> User:
    account = UnixAccount(unix, uid, **more)
    claims = Claims(f"sub-{name}", name, name.title(), "", None, account)
    user = service.sign_in(provider=provider, claims=claims, now=timezone.now())
    user.refresh_from_db()
    return user


def has(user: User) -> tuple[str, int]:
    user.refresh_from_db()
    return user.unix_user, unix_uid(user)


def set_by_admin(user: User, name: str, omar: User) -> None:
    set_unix_users({user.pk: name}, actor=omar, now=timezone.now())


def refusals(user: User) -> list[str]:
    rows = AuditEntry.objects.filter(
        verb="identity.unix-user-refused", subject=f"user:{user.pk}"
    )
    return list(rows.order_by("pk").values_list("reason", flat=True))


@pytest.mark.pure
@pytest.mark.parametrize(
    ("name", "uid", "found"),
    [
        ("ada", "1234", UnixAccount("ada", 1234)),
        (["ada"], 4_294_967_294, UnixAccount("ada", 4_294_967_294)),
        ("ada", None, NO_ACCOUNT),
        (None, 1234, NO_ACCOUNT),
        ([], [], NO_ACCOUNT),
        ("ada", "999", None),
        ("ada", "0", None),
        ("ada", "65534", None),
        ("ada", "-1", None),
        ("ada", "1e4", None),
        ("ada", "\u0661\u0662\u0663\u0664", None),
        ("ada", str(2**32 - 1), None),
        ("ada", "9" * 5000, None),
        ("ada", True, None),
        ("ada", ["1234", "1235"], None),
        ("ada", {"uid": 1234}, None),
        ("ada", 1234.0, None),
        (["ada", "root"], 1234, None),
        ("Ada", 1234, None),
        ("ada\n", 1234, UnixAccount("ada", 1234)),
        ("ada/../x", 1234, None),
        ("-rf", 1234, None),
        ("1234", 1234, None),
        ("a" * 33, 1234, None),
        ("\0", 1234, None),
    ],
)
def test_what_claims_say(name, uid, found):
    raw = {"sub": "7", "posix": {"name": name}, "uidNumber": uid}
    got = read_claims(raw, username_claim="u", groups_claim="g", **NAMES).unix
    assert got == found if found else (got.name == "" and got.fault)
    alone = read_unix_account(name, uid, needs_uid=False)
    assert alone.uid == 0
    # A site that names no claim reads none.
    assert read_claims(raw, username_claim="u", groups_claim="g").unix == NO_ACCOUNT


def test_a_login_sets_the_unix_user_and_an_admin_has_the_last_word(omar):
    ada = sign_in("ada", "alove", 1815)
    assert has(ada) == ("alove", 1815)
    row = AuditEntry.objects.get(verb="identity.unix-user")
    assert row.detail["changes"] == {
        "unix_user": ["", "alove"],
        "unix_uid": [0, 1815],
    }
    # Missing claims change nothing, and new ones do.
    assert has(sign_in("ada")) == ("alove", 1815)
    assert has(sign_in("ada", "alove", 1816)) == ("alove", 1816)
    assert has(sign_in("ada", "lovelace", 1816)) == ("lovelace", 1816)
    set_by_admin(ada, "other", omar)
    assert has(ada) == ("other", 0)
    assert has(sign_in("ada", "lovelace", 1816)) == ("other", 0)
    set_by_admin(ada, "", omar)
    assert has(sign_in("ada", "lovelace", 1816)) == ("", 0)
    # Set to what the login says, it is the login's again.
    set_by_admin(ada, "lovelace", omar)
    assert has(sign_in("ada", "alove", 1816)) == ("alove", 1816)
    service.disconnect(
        identity_id=Identity.objects.get().pk,
        user_id=ada.pk,
        actor=omar,
        now=timezone.now(),
    )
    assert has(ada) == ("alove", 0)


def test_nobody_gets_the_unix_user_or_the_uid_of_another(omar):
    """The sign-in works in any case."""
    make_user("bob")
    make_user("eve", unix_user="evil")
    ada = sign_in("ada", "alove", 1815)
    mia = sign_in("mia", "bob", 2000)
    for name, uid, words in (
        ("bob", 2000, "is the user name of Bob"),
        ("bob", 2001, "is the user name of Bob"),
        ("evil", 2000, "is the Unix user of Eve"),
        ("alove", 1815, "is the Unix user of Ada"),
        ("mia", 1815, "uid 1815 is that of Ada"),
        ("postgres", 2000, "is a system account"),
    ):
        assert has(sign_in("mia", name, uid)) == ("", 0)
        assert words in refusals(mia)[-1]
    # The same fault is not written again and again.
    assert len(refusals(mia)) == 5
    assert has(sign_in("mia", fault="uid 0 is wrong")) == ("", 0)
    assert refusals(mia)[-1] == "uid 0 is wrong"
    # What was right stays if a login says something wrong later.
    assert has(sign_in("ada", fault="uid 0 is wrong")) == ("alove", 1815)
    set_by_admin(ada, "lovelace", omar)
    assert has(sign_in("mia", "mia", 1815)) == ("mia", 1815)


@pytest.mark.once
def test_a_second_login_does_not_replace_the_unix_user_of_the_first():
    ada = sign_in("ada", "alove", 1815)
    partner = Provider("p", "P", "https://p.example", "c", "s")
    claims = Claims("9", "ada", "Ada", "", None, UnixAccount("bob", 1900))
    service.connect(user=ada, provider=partner, claims=claims, now=timezone.now())
    assert has(ada) == ("alove", 1815)
