"""A user's settings: groups, theme, and API tokens shown once."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from reservations.accounts.api_tokens import create_token, revoke_token
from reservations.models import ApiToken, AuditEntry

pytestmark = pytest.mark.django_db(transaction=True)

NEW = {"label": "sweeps", "scopes": ["read", "job"], "days": "30"}


def tokens_in(page: str) -> list[str]:
    return re.findall(r"gp_[\w-]{20,}", page)


@pytest.mark.once
def test_a_token_is_shown_once_and_kept_as_a_hash(client: Client, alice):
    client.force_login(alice)
    answer = client.post("/me/tokens/", NEW)
    (text,) = tokens_in(answer.content.decode())
    assert answer.headers["Cache-Control"].find("no-store") >= 0
    token = ApiToken.objects.get()
    assert token.token_hash == ApiToken.hash_token(text)
    assert text not in repr(token.__dict__)
    assert tokens_in(client.get("/me/").content.decode()) == []


@pytest.mark.once
def test_a_token_has_the_chosen_scopes_and_lifetime(client: Client, alice):
    client.force_login(alice)
    client.post("/me/tokens/", NEW)
    token = ApiToken.objects.get()
    assert (token.label, token.scopes) == ("sweeps", ["read", "job"])
    assert token.expires_at - token.created_at == timedelta(days=30)


@pytest.mark.once
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"label": ""}, "Fill this in."),
        ({"scopes": []}, "Choose at least one permission"),
        ({"scopes": ["admin"]}, "Choose"),
        ({"days": "9999"}, "Choose"),
    ],
)
def test_a_wrong_form_is_explained_and_stays_filled(client, alice, change, words):
    client.force_login(alice)
    answer = client.post("/me/tokens/", {**NEW, **change})
    text = answer.content.decode()
    assert answer.status_code == 422
    assert words in text
    assert not ApiToken.objects.exists()
    if "label" not in change:
        assert 'value="sweeps"' in text


@pytest.mark.once
@pytest.mark.parametrize(
    ("own_ids", "unisolated", "words"),
    [
        (False, False, "none (only ready-made recipes can run)"),
        (False, True, "none (your scripts run as the node&#x27;s own user)"),
        (True, True, "an id of your own on this machine"),
    ],
)
def test_the_unix_account_of_jobs_is_named(
    client: Client, alice, settings, own_ids, unisolated, words
):
    settings.OWN_IDS, settings.ALLOW_UNISOLATED_SCRIPTS = own_ids, unisolated
    client.force_login(alice)
    page = client.get("/me/").content.decode().replace("&#39;", "&#x27;")
    assert words in page or words.replace("&#x27;", "'") in page


@pytest.mark.once
def test_a_revoked_token_is_gone_from_the_page(client: Client, alice):
    client.force_login(alice)
    client.post("/me/tokens/", NEW)
    token = ApiToken.objects.get()
    assert "sweeps" in client.get("/me/").content.decode()
    assert client.post(f"/me/tokens/{token.pk}/revoke/").url == "/me/"
    assert "sweeps" not in client.get("/me/").content.decode()
    token.refresh_from_db()
    assert token.revoked_at is not None


def test_bob_cannot_revoke_or_see_alices_token(client: Client, alice, bob):
    token, _ = create_token(
        user=alice, label="hers", scopes=["read"], days=7, now=timezone.now()
    )
    client.force_login(bob)
    assert client.post(f"/me/tokens/{token.pk}/revoke/").status_code == 404
    assert "hers" not in client.get("/me/").content.decode()
    token.refresh_from_db()
    assert token.revoked_at is None


def test_making_and_revoking_are_in_the_audit_log(alice):
    now = timezone.now()
    token, _ = create_token(user=alice, label="x", scopes=["read"], days=7, now=now)
    assert revoke_token(token_id=token.pk, user=alice, now=now)
    assert not revoke_token(token_id=token.pk, user=alice, now=now)
    verbs = list(
        AuditEntry.objects.filter(subject=f"token:{token.pk}")
        .order_by("pk")
        .values_list("verb", flat=True)
    )
    assert verbs == ["token.created", "token.revoked"]


@pytest.mark.once
@pytest.mark.parametrize("scopes", [[], ["admin"], ["read", "everything"]])
def test_no_service_hands_out_other_scopes(alice, scopes):
    with pytest.raises(ValueError, match="not scopes"):
        create_token(user=alice, label="x", scopes=scopes, days=7, now=timezone.now())


@pytest.mark.once
def test_an_expired_token_is_called_expired(client: Client, alice):
    create_token(
        user=alice,
        label="old",
        scopes=["read"],
        days=7,
        now=timezone.now() - timedelta(days=8),
    )
    client.force_login(alice)
    assert "expired" in client.get("/me/").content.decode()


@pytest.mark.once
def test_one_sees_ones_groups(client: Client, alice):
    client.force_login(alice)
    assert "Vision" in client.get("/me/").content.decode()
