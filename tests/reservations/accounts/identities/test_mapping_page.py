"""The page of an admin: what the groups of a provider give."""

import pytest
from django.utils import timezone

from reservations.accounts.identities import service
from reservations.accounts.identities.directory_settings import Directory
from reservations.accounts.identities.provider_settings import LoginSettings, Provider
from reservations.accounts.identities.rules import Claims
from reservations.accounts.second_factors.sign_in import PROVED_AT
from reservations.models import (
    AuditEntry,
    ClaimMapping,
    Identity,
    Membership,
    SecondFactor,
)
from tests.factories import make_account

pytestmark = pytest.mark.django_db
UNI = Provider("uni", "Uni Example", "https://sso.uni.example", "c", "s", sign_up="all")
PARTNER = Provider("p", "Partner", "https://p.example", "c", "s")
PAGE = "/manage/logins/"


@pytest.fixture
def desk(client, omar, settings):
    settings.LOGIN_SETTINGS = LoginSettings(("password", "oidc"), (UNI, PARTNER), ())
    client.force_login(omar)
    return client


def form(*rows: tuple[str, str, object], **more: object) -> dict[str, object]:
    found: dict[str, object] = {
        "rows-TOTAL_FORMS": len(rows),
        "rows-INITIAL_FORMS": 0,
    }
    for number, (value, role, account) in enumerate(rows):
        found |= {
            f"rows-{number}-value": value,
            f"rows-{number}-role": role,
            f"rows-{number}-account": account or "",
        }
    return found | more


def ada_signs_in():
    who = Claims("7", "ada", "Ada", "", frozenset({"gpu"}))
    return service.sign_in(provider=UNI, claims=who, now=timezone.now())


def test_preview_then_save(desk):
    vision = make_account("vision", title="Vision")
    ada = ada_signs_in()
    page = desk.get(PAGE)
    assert '<option value="gpu">' in page.content.decode()
    sent = form(("gpu", "member", vision.pk), ("", "member", ""))
    shown = desk.post(PAGE, sent)
    assert shown.status_code == 200
    assert "1 person would join Vision." in shown.content.decode()
    assert not ClaimMapping.objects.exists()
    stale = desk.post(PAGE, sent | {"save": "1", "mark": "x"})
    assert stale.status_code == 409 and not ClaimMapping.objects.exists()
    mark = shown.context["review"].mark
    saved = desk.post(PAGE, sent | {"save": "1", "mark": mark})
    assert saved["Location"] == f"{PAGE}?provider=uni"
    assert Membership.objects.get(user=ada, active=True).account == vision
    again = desk.get(PAGE).content.decode()
    assert 'value="gpu"' in again
    # A row that is removed.
    gone = form(("gpu", "member", vision.pk)) | {"rows-0-DELETE": "on"}
    shown = desk.post(PAGE, gone)
    assert "1 person would leave Vision." in shown.content.decode()
    desk.post(PAGE, gone | {"save": "1", "mark": shown.context["review"].mark})
    assert not ClaimMapping.objects.exists()
    assert not Membership.objects.filter(user=ada, active=True).exists()
    log = desk.get("/manage/audit/").content.decode()
    assert "changed what the groups of provider Uni Example give" in log
    assert AuditEntry.objects.filter(verb="identity.mapping-changed").count() == 2


@pytest.mark.once
def test_a_provider_has_rows_of_its_own(desk):
    vision = make_account("vision")
    sent = form(("gpu", "member", vision.pk))
    shown = desk.post(f"{PAGE}?provider=p", sent)
    desk.post(
        f"{PAGE}?provider=p", sent | {"save": "1", "mark": shown.context["review"].mark}
    )
    assert ClaimMapping.objects.get().issuer == PARTNER.issuer


@pytest.mark.once
@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("gpu", "member", "")], "Choose a group."),
        ([("", "member", "vision")], "Fill this in, or remove the row."),
        ([("", "operator", "")], "Fill this in, or remove the row."),
        ([("gpu", "operator", "vision")], "Leave the group empty."),
        ([("gpu", "owner", "vision")], "Choose one of the values in the list."),
        ([("gpu", "member", "10000")], "Choose one of the values in the list."),
        ([("gpu", "member", "x")], "Choose one of the values in the list."),
        ([("x" * 256, "member", "vision")], "Use 255 characters at most"),
        ([("g\0", "member", "vision")], "Remove the null characters."),
        (
            [("gpu", "member", "vision"), ("gpu", "head", "vision")],
            "Another row has this value and group.",
        ),
    ],
)
def test_a_bad_row_says_why(desk, rows, words):
    vision = make_account("vision")
    rows = [(v, r, vision.pk if a == "vision" else a) for v, r, a in rows]
    answer = desk.post(PAGE, form(*rows, save="1"))
    assert answer.status_code == 422
    assert words in answer.content.decode()
    assert not ClaimMapping.objects.exists()


@pytest.mark.once
def test_broken_requests_are_refused(desk):
    for sent in ({}, {"rows-TOTAL_FORMS": "x", "rows-INITIAL_FORMS": "y"}):
        assert desk.post(PAGE, sent).status_code == 422
    many = {"rows-TOTAL_FORMS": 10**6, "rows-INITIAL_FORMS": 0}
    assert desk.post(PAGE, many).status_code == 422


def test_only_an_admin_sees_it(client, alice, settings):
    settings.LOGIN_SETTINGS = LoginSettings(("oidc",), (UNI,), ())
    client.force_login(alice)
    assert client.get(PAGE).status_code == 403
    assert client.post(PAGE, form()).status_code == 403


def test_without_a_provider_it_says_how(client, omar):
    client.force_login(omar)
    assert "docs/logins.md" in client.get(PAGE).content.decode()
    assert PAGE not in client.get("/manage/people/").content.decode()


@pytest.mark.once
def test_the_page_of_a_person_disconnects_a_login(desk):
    ada = ada_signs_in()
    url = f"/manage/people/{ada.pk}/"
    assert "Disconnect Uni Example" in desk.get(url).content.decode()
    for bad in ("", "x", "999999"):
        sent = {"act": "disconnect", "identity": bad}
        assert desk.post(url, sent).status_code == 409
    sent["identity"] = Identity.objects.get().pk
    assert desk.post(url, sent).status_code == 302
    assert not Identity.objects.exists()


@pytest.mark.once
def test_people_with_a_login_can_sign_in(desk):
    ada_signs_in()
    assert "ada" not in desk.get("/manage/people/?kind=new").content.decode()
    assert "cannot sign in yet" not in desk.get("/manage/").content.decode()


@pytest.mark.once
def test_an_admin_with_a_second_factor_confirms_it_before_a_role_is_given(desk, omar):
    SecondFactor.objects.create(user=omar, kind=SecondFactor.Kind.TOTP, name="phone")
    sent = form(("gpu", "operator", ""))
    shown = desk.post(PAGE, sent)
    assert "Confirm your second factor" in shown.content.decode()
    kept = sent | {"save": "1", "mark": shown.context["review"].mark}
    refused = desk.post(PAGE, kept)
    assert refused.status_code == 403
    assert 'value="gpu"' in refused.content.decode()
    assert not ClaimMapping.objects.exists()
    session = desk.session
    session[PROVED_AT] = int(timezone.now().timestamp())
    session.save()
    assert desk.post(PAGE, kept).status_code == 302
    assert ClaimMapping.objects.exists()


def test_groups_of_a_directory_have_no_case(desk, settings):
    directory = Directory(name="Uni", urls=("ldaps://ldap.example.org",), tls="ldaps")
    settings.LOGIN_SETTINGS = LoginSettings(("ldap",), (), (), directory=directory)
    vision = make_account("vision")
    sent = form(("GPU  Users", "member", vision.pk), ("gpu users", "head", vision.pk))
    assert (
        "Another row has this value and group."
        in desk.post(PAGE, sent).content.decode()
    )
    shown = desk.post(PAGE, form(("GPU  Users", "member", vision.pk)))
    mark = shown.context["review"].mark
    desk.post(PAGE, form(("GPU  Users", "member", vision.pk), save="1", mark=mark))
    assert ClaimMapping.objects.get().value == "gpu users"
