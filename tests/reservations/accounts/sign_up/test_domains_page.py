"""The page of an admin: which mail domains may sign up."""

import pytest

from reservations.models import AuditEntry, SignUpDomain
from tests.factories import make_account, make_user

pytestmark = pytest.mark.django_db
PAGE = "/manage/sign-up/"


def rows(*given: tuple[str, object], **more: object) -> dict[str, object]:
    found: dict[str, object] = {
        "rows-TOTAL_FORMS": len(given),
        "rows-INITIAL_FORMS": 0,
    }
    for number, (domain, account) in enumerate(given):
        found |= {
            f"rows-{number}-domain": domain,
            f"rows-{number}-account": account or "",
        }
    return found | more


def test_preview_then_save(client, omar, settings):
    vision = make_account("vision", title="Vision")
    client.force_login(omar)
    shown = client.get(PAGE).content.decode()
    assert "Nobody can sign up: it needs" in shown
    assert PAGE in client.get("/manage/people/").content.decode()
    sent = rows(("@Uni.Example", vision.pk), ("*.uni.example", ""), ("", ""))
    page = client.post(PAGE, sent)
    words = page.content.decode()
    assert "nobody signs up" in words
    assert "sign-up into Vision" in words
    assert "Vision has no quota." in words
    assert "now 0 credits." in words
    assert not SignUpDomain.objects.exists()
    mark = page.context["review"].mark
    assert client.post(PAGE, sent | {"save": "1", "mark": "old"}).status_code == 409
    assert client.post(PAGE, sent | {"save": "1", "mark": mark}).status_code == 302
    stored = dict(SignUpDomain.objects.values_list("domain", "account"))
    assert stored == {"uni.example": vision.pk, "*.uni.example": None}
    row = AuditEntry.objects.get(verb="sign-up.domains-changed")
    assert row.detail == {
        "before": {},
        "after": {"uni.example": "vision", "*.uni.example": None},
    }
    log = client.get("/manage/audit/").content.decode()
    assert "changed which mail domains sign up" in log
    again = client.post(PAGE, sent).context["review"]
    assert (again.changes, again.title) == (False, "Nothing was changed.")
    gone = client.post(PAGE, rows(("uni.example", vision.pk)))
    assert "People who have signed up stay" in gone.content.decode()


@pytest.mark.once
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((("uni", ""),), "Enter a domain, such as example.org"),
        ((("*", ""),), "Enter a domain"),
        ((("*.org", ""),), "Enter a domain"),
        ((("ada@uni.example", ""),), "Enter a domain"),
        ((("192.0.2.1", ""),), "Enter a domain"),
        ((("uni.example", ""), ("UNI.example", "")), "Another row has this domain."),
        ((("uni.example", "99999"),), "Choose one of the values in the list."),
        ((("", "group"),), "Fill this in, or remove the row."),
    ],
)
def test_a_wrong_row_is_refused_by_its_field(client, omar, given, words):
    vision = make_account("vision")
    given = tuple((name, vision.pk if one == "group" else one) for name, one in given)
    client.force_login(omar)
    answer = client.post(PAGE, rows(*given, save="1", mark="x"))
    assert answer.status_code == 422
    assert words in answer.content.decode()
    assert not SignUpDomain.objects.exists()


@pytest.mark.once
def test_only_admins_see_the_page(client, db):
    assert client.get(PAGE).status_code == 302
    client.force_login(make_user("ada"))
    assert client.get(PAGE).status_code in (403, 404)
