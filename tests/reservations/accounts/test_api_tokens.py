"""Vouchers: owed after a failure of the site, spent on one firm booking far ahead."""

from datetime import timedelta

import pytest
from django.utils import timezone

from reservations import tick
from reservations.booking.release import cancel
from reservations.booking.service import book
from reservations.models import Membership, Notice, Reservation, Voucher
from reservations.rules import errors
from reservations.rules.lifecycle import Kind, State
from reservations.rules.voucher_terms import VoucherRefused
from tests.factories import make_membership
from tests.reservations.calling import Caller
from tests.reservations.conftest import HOUR, NOW, WEIGHT, at

FAR = at(12, day=30)
"""Four weeks ahead: beyond the horizon of 14 days."""


def failed(lab, user) -> Voucher:
    """A Gpu is lost under a User's reservation: everything back, and a Voucher."""
    made = lab.book(user, lab.gpus[:1], NOW, 4)
    lab.gpus[0].lost = True
    lab.gpus[0].save()
    tick.tick(at(9, 30))
    tick.tick(at(9, 40))
    lab.gpus[0].lost = False
    lab.gpus[0].save()
    return Voucher.objects.get(given_for=made)


def book_far(lab, user, token, start=FAR, hours=2, now=None, **fields):
    fields.setdefault("membership", None)
    return book(
        user=user,
        gpu_ids=[lab.gpus[1].pk],
        start=start,
        end=start + timedelta(hours=hours),
        now=now or at(10),
        voucher_id=token.pk,
        **fields,
    )


@pytest.mark.once
def test_a_token_is_one_firm_booking_beyond_the_horizon(lab, alice) -> None:
    token = failed(lab, alice)
    with pytest.raises(errors.BeyondHorizon):
        lab.book(alice, lab.gpus[1:2], FAR, 2, now=at(10))
    made = book_far(lab, alice, token)
    token.refresh_from_db()
    assert (made.kind, token.used_for) == (Kind.FIRM, made)
    with pytest.raises(VoucherRefused) as used:
        book_far(lab, alice, token, start=FAR + timedelta(days=1))
    assert used.value.why == "used"
    cancel(reservation_id=made.pk, user=alice, now=at(11))
    token.refresh_from_db()
    assert token.used_for == made, "what its owner cancels does not bring it back"


@pytest.mark.once
def test_where_no_token_is_needed_none_is_spent(lab, alice) -> None:
    token = failed(lab, alice)
    made = book_far(lab, alice, token, start=at(12, day=5))
    token.refresh_from_db()
    assert (made.kind, token.used_for) == (Kind.FIRM, None)


def test_a_token_ignores_the_horizon_and_nothing_else(lab, alice, bob, carol) -> None:
    token = failed(lab, alice)
    lab.set(quota_gpu_seconds=WEIGHT * HOUR)
    with pytest.raises(errors.QuotaExceeded):
        book_far(lab, alice, token)
    lab.set(quota_gpu_seconds=WEIGHT * 40 * HOUR)
    with pytest.raises(errors.TooLong):
        book_far(lab, alice, token, hours=25)
    with pytest.raises(errors.OffGrid):
        book_far(lab, alice, token, start=FAR + timedelta(minutes=5))
    with pytest.raises(errors.NotFound):
        book_far(lab, bob, token)
    make_membership(alice, "nlp")
    other = Membership.objects.get(user=alice, account__name="nlp")
    with pytest.raises(VoucherRefused) as elsewhere:
        book_far(lab, alice, token, membership=other)
    assert "Vision" in elsewhere.value.text()
    token.refresh_from_db()
    assert token.used_for is None
    # With several accounts the token itself says which one pays.
    assert book_far(lab, alice, token).membership_id == token.membership_id


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"expires_at": at(9, 50)}, "expired"),
        ({"expires_at": at(12, day=20)}, "too-far"),
        ({"revoked_at": at(9, 50)}, "revoked"),
    ],
)
def test_a_token_has_an_end(lab, alice, change, why) -> None:
    token = failed(lab, alice)
    Voucher.objects.filter(pk=token.pk).update(**change)
    with pytest.raises(VoucherRefused) as refused:
        book_far(lab, alice, token)
    assert refused.value.why == why
    assert refused.value.text()


def test_a_token_comes_back_when_the_site_fails_its_booking_too(lab, alice) -> None:
    token = failed(lab, alice)
    made = book_far(lab, alice, token)
    Reservation.objects.filter(pk=made.pk).update(state=State.ACTIVE)
    lab.gpus[1].lost = True
    lab.gpus[1].save()
    tick.tick(FAR + timedelta(minutes=1))
    tick.tick(FAR + timedelta(minutes=30))
    made.refresh_from_db()
    token.refresh_from_db()
    assert (made.state, token.used_for) == (State.REFUNDED, None)
    assert token.expires_at == FAR + timedelta(days=90, minutes=30)
    assert Voucher.objects.filter(given_for=made).exists(), "and one for this failure"
    kinds = list(Notice.objects.order_by("pk").values_list("kind", flat=True))
    assert kinds.count("refunded") == 2 and kinds.count("token_given") == 2


def test_the_api_takes_and_lists_tokens(lab, alice) -> None:
    token = failed(lab, alice)
    call = Caller(alice)
    now = timezone.now()
    Voucher.objects.filter(pk=token.pk).update(
        given_at=now, expires_at=now + timedelta(days=90)
    )
    (told,) = call("GET", "/standing").body["vouchers"]
    assert (told["id"], told["account"]) == (token.pk, "vision")
    start = now.replace(minute=0, second=0, microsecond=0) + timedelta(days=30)
    wish = {
        "membership": None,
        "gpu_ids": [lab.gpus[1].pk],
        "purpose": "",
        "start": start.isoformat(),
        "end": (start + timedelta(hours=1)).isoformat(),
    }
    seen = call("POST", "/reservations/preview", wish).body
    assert seen["refusal"]["code"] == "beyond-horizon"
    paid = wish | {"voucher": token.pk}
    assert call("POST", "/reservations/preview", paid).body["ok"]
    made = call("POST", "/reservations", paid)
    assert (made.status_code, made.body["kind"]) == (201, "firm")
    again = call("POST", "/reservations", paid)
    assert (again.status_code, again.body["code"]) == (409, "token-refused")
    assert call("GET", "/standing").body["vouchers"] == []
    assert call("POST", "/reservations", wish | {"voucher": 10**6}).status_code == 404
