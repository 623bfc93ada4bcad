"""Permissions over the API: strangers, heads, tokens, hidden names."""

import json
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from reservations.accounts.api_tokens import create_token
from reservations.models import ApiToken, Reservation, SitePolicy
from tests.reservations.calling import BASE, Caller, iso, wish


@pytest.mark.once
def test_carol_cannot_touch_bobs_reservation(gpus, bob, carol, hour) -> None:
    made = Caller(bob)("POST", "/reservations", wish(gpus[:1], hour)).body
    call = Caller(carol)
    path = f"/reservations/{made['id']}"
    for method, where, body in (
        ("POST", f"{path}/cancel", {"reason": "mine now"}),
        ("POST", f"{path}/undo", None),
        ("POST", f"{path}/release", None),
        ("POST", f"{path}/keep", None),
        ("PATCH", path, {"end": (hour + timedelta(hours=1)).isoformat(), "version": 1}),
    ):
        answer = call(method, where, body)
        assert (answer.status_code, answer.body["code"]) == (403, "not-allowed"), where
    assert call("POST", "/reservations/999999/cancel").status_code == 404
    row = Reservation.objects.get()
    assert (row.state, row.version) == ("confirmed", 1)


@pytest.mark.once
def test_carol_cannot_pay_with_visions_quota(gpus, bob, carol, hour) -> None:
    body = wish(gpus[:1], hour, membership=bob.memberships.get().pk)
    for path in ("/reservations", "/reservations/preview"):
        assert Caller(carol)("POST", path, body).status_code == 404


@pytest.mark.once
def test_carols_standing_shows_nothing_of_vision(gpus, bob, carol, hour) -> None:
    Caller(bob)("POST", "/reservations", wish(gpus[:1], hour))
    text = Caller(carol)("GET", "/standing").content.decode()
    assert "vision" not in text.lower() and "bob" not in text.lower()


@pytest.mark.once
def test_names_are_hidden_from_strangers_where_the_site_hides_them(
    gpus, alice, carol, omar, hour
) -> None:
    policy = SitePolicy.current()
    policy.names_visible = False
    policy.save()
    Caller(alice)("POST", "/reservations", wish(gpus[:1], hour, purpose="secret plan"))
    span = f"/calendar?start={iso(hour)}&end={iso(hour + timedelta(hours=4))}"
    seen = Caller(carol)("GET", span)
    assert seen.body["reservations"][0]["user"] is None
    assert seen.body["reservations"][0]["account"] == "vision"
    assert b"secret plan" not in seen.content and b"Alice" not in seen.content
    assert Caller(alice)("GET", span).body["reservations"][0]["user"] == "Alice"
    assert Caller(omar)("GET", span).body["reservations"][0]["user"] == "Alice"
    refused = Caller(carol)("POST", "/reservations", wish(gpus[:1], hour))
    assert b"Alice" not in refused.content


def test_nobody_gets_in_without_a_session_or_a_token(gpus, hour) -> None:
    for call in (Caller(), Caller(token="gp_wrong")):
        for method, path in (("GET", "/standing"), ("POST", "/reservations")):
            answer = call(
                method, path, wish(gpus[:1], hour) if method[0] == "P" else None
            )
            assert answer.status_code == 401
            assert answer["content-type"] == "application/problem+json"


def test_a_page_needs_the_csrf_token(gpus, alice, hour) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(alice)
    answer = client.post(
        f"{BASE}/reservations",
        json.dumps(wish(gpus[:1], hour)),
        content_type="application/json",
    )
    assert answer.status_code == 403
    assert not Reservation.objects.exists()


def make_token(user, *scopes: str, days: int = 1) -> str:
    return create_token(
        user=user, label="test", scopes=scopes, days=days, now=timezone.now()
    )[1]


def test_a_token_does_what_its_scopes_say(gpus, alice, hour) -> None:
    reader = Caller(token=make_token(alice, "read"))
    assert reader("GET", "/standing").status_code == 200
    refused = reader("POST", "/reservations", wish(gpus[:1], hour))
    assert (refused.status_code, refused.body["code"]) == (403, "scope-missing")
    booker = Caller(token=make_token(alice, "book"))
    assert booker("GET", "/standing").status_code == 403
    assert booker("POST", "/reservations", wish(gpus[:1], hour)).status_code == 201
    assert ApiToken.objects.filter(last_used_at=None).count() == 0


def test_tokens_expire_are_revoked_and_die_with_the_login(gpus, alice) -> None:
    for kill in (
        lambda t: ApiToken.objects.filter(pk=t.pk).update(expires_at=timezone.now()),
        lambda t: ApiToken.objects.filter(pk=t.pk).update(revoked_at=timezone.now()),
        lambda t: type(alice).objects.filter(pk=alice.pk).update(is_active=False),
    ):
        token, text = create_token(
            user=alice, label="t", scopes=["read"], days=1, now=timezone.now()
        )
        assert Caller(token=text)("GET", "/standing").status_code == 200
        kill(token)
        assert Caller(token=text)("GET", "/standing").status_code == 401


@pytest.mark.once
def test_an_operators_token_is_no_operator(gpus, alice, omar, hour) -> None:
    made = Caller(alice)("POST", "/reservations", wish(gpus[:1], hour)).body
    path = f"/reservations/{made['id']}/cancel"
    token = Caller(token=make_token(omar, "book"))
    assert token("POST", path, {"reason": "because"}).status_code == 403
    page = Caller(omar)
    assert page("POST", path).body["code"] == "reason-needed"
    assert page("POST", path, {"reason": "maintenance"}).status_code == 200


@pytest.mark.once
def test_the_sixty_first_booking_in_a_minute_is_too_fast(
    gpus, alice, bob, hour, settings
) -> None:
    settings.BOOK_RATE_PER_MINUTE = 3
    call = Caller(alice)
    bodies = [call("POST", "/reservations/7/cancel") for _ in range(8)]
    assert bodies[0].status_code == 404
    assert bodies[-1].status_code == 429
    assert bodies[-1].body["code"] == "too-fast"
    assert Caller(bob)("POST", "/reservations/7/cancel").status_code == 404
