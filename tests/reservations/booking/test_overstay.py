"""Past its end a reservation may continue until another user claims the Gpu.

See docs/design/fair-booking.md#rule-3.
"""

from datetime import timedelta

import pytest

from reservations import tick
from reservations.booking.booking_change import change
from reservations.booking.overstay import set_overstay
from reservations.booking.release import cancel, release, undo_cancel
from reservations.booking.service import preview
from reservations.models import Allocation, Membership, Notice
from reservations.presence.check_in import check_in
from reservations.rules import errors
from reservations.rules.lifecycle import Kind, State
from reservations.store.booking_facts import site_policy
from reservations.store.booking_snapshot import account_path, quota_infos
from tests.reservations.calling import Caller, wish
from tests.reservations.conftest import HOUR, NOW, WEIGHT, at, balance

HALF = timedelta(minutes=30)


def stays_on(lab, user, hours=2):
    """Book from now on and ask to stay."""
    made = lab.book(user, lab.gpus[:1], NOW, hours)
    check_in(reservation_id=made.pk, now=NOW)
    return set_overstay(reservation_id=made.pk, user=user, now=at(9, 1))


@pytest.mark.once
def test_who_stays_on_pays_as_used_and_uses_no_quota(lab, alice) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 2 * HOUR)
    made = stays_on(lab, alice)
    assert (made.booked_end, made.end) == (at(11), at(23)), "12 h at most"
    tick.tick(at(15))
    made.refresh_from_db()
    assert (made.state, made.kind) == (State.ACTIVE, Kind.FIRM)
    member = Membership.objects.get(user=alice)
    (info,) = quota_infos(
        member, account_path(member), NOW, at(23), policy=site_policy()
    )
    assert [(s.end - s.start) // HOUR for s in info.spends] == [2]
    release(reservation_id=made.pk, user=alice, now=at(15, 30))
    assert balance(made) == (0, WEIGHT * 6 * HOUR + WEIGHT * HOUR // 2)
    tick.tick(at(23, 30))
    assert balance(made) == (0, WEIGHT * 13 * HOUR // 2), "leaving is free"


@pytest.mark.once
def test_who_claims_the_gpu_has_it_after_ten_minutes(lab, alice, bob) -> None:
    made = stays_on(lab, alice)
    tick.tick(at(12))
    now = at(12, 7)
    seen = preview(
        user=bob,
        membership=None,
        gpu_ids=[lab.gpus[0].pk],
        start=now,
        end=at(14),
        now=now,
    )
    assert seen.kind is Kind.FIRM
    claimed = lab.book(bob, lab.gpus[:1], now, 1 + 53 / 60, now=now)
    assert (claimed.start, claimed.state) == (at(12, 17), State.CONFIRMED)
    assert claimed.cost_gpu_seconds == WEIGHT * (103 * 60)
    made.refresh_from_db()
    assert (made.end, made.state) == (at(12, 17), State.ACTIVE)
    notice = Notice.objects.get(user=alice, kind="overstay_claimed")
    assert notice.detail["leave_at"] == at(12, 17).isoformat()
    tick.tick(at(12, 16))
    made.refresh_from_db()
    assert made.state == State.ACTIVE, "it has its ten minutes"
    tick.tick(at(12, 17))
    made.refresh_from_db()
    claimed.refresh_from_db()
    assert (made.state, claimed.state) == (State.ENDED, State.ACTIVE)
    assert balance(made) == (0, WEIGHT * (3 * HOUR + 17 * 60))


@pytest.mark.once
def test_a_claim_from_the_next_hour_on_leaves_it_until_then(lab, alice, bob) -> None:
    made = stays_on(lab, alice)
    lab.book(bob, lab.gpus[:1], at(13), 2, now=at(12, 20))
    made.refresh_from_db()
    assert made.end == at(13)
    with pytest.raises(errors.GpuTaken):
        # Ten minutes of notice: not at the next full hour, nine minutes from now.
        lab.book(bob, lab.gpus[:1], at(12), 1, now=at(11, 51))


@pytest.mark.once
def test_before_its_end_nobody_claims_what_was_booked(lab, alice, bob) -> None:
    made = stays_on(lab, alice)
    with pytest.raises(errors.GpuTaken):
        lab.book(bob, lab.gpus[:1], at(10), 2, now=at(9, 30))
    lab.book(bob, lab.gpus[:1], at(11), 1, now=at(9, 30))
    made.refresh_from_db()
    assert made.end == made.booked_end == at(11)
    # Bob's time is over at twelve, but Alice's is too by then.
    tick.tick(at(11))
    made.refresh_from_db()
    assert made.state == State.ENDED


@pytest.mark.once
def test_a_claim_that_is_cancelled_lets_it_stay_on(lab, alice, bob) -> None:
    made = stays_on(lab, alice)
    claim = lab.book(bob, lab.gpus[:1], at(11), 1, now=at(9, 30))
    cancel(reservation_id=claim.pk, user=bob, now=at(9, 31))
    assert tick.tick(at(9, 32))["stayed_on"] == 1
    made.refresh_from_db()
    assert made.end == at(23)
    undo_cancel(reservation_id=claim.pk, user=bob, now=at(9, 31))
    made.refresh_from_db()
    assert made.end == at(11)


@pytest.mark.once
def test_it_ends_where_somebodys_time_begins_and_at_the_owners_word(
    lab, alice, carol
) -> None:
    lab.book(carol, lab.gpus[:1], at(14), 2)
    made = stays_on(lab, alice)
    assert made.end == at(14)
    gone = set_overstay(reservation_id=made.pk, user=alice, wanted=False, now=at(12))
    assert gone.end == at(12)
    tick.tick(at(12))
    gone.refresh_from_db()
    assert gone.state == State.ENDED
    assert not Allocation.objects.filter(reservation=gone, live=True).exists()
    with pytest.raises(errors.NotChangeable):
        set_overstay(reservation_id=made.pk, user=alice, now=at(12))
    with pytest.raises(errors.NotAllowed):
        set_overstay(reservation_id=made.pk, user=carol, now=at(10))


def test_making_it_longer_is_judged_like_any_request(lab, alice, bob) -> None:
    lab.set(quota_gpu_seconds=WEIGHT * 4 * HOUR)
    made = stays_on(lab, alice)
    with pytest.raises(errors.QuotaExceeded):
        # Inside what it may stay on for; as firm time it does not fit.
        change(
            reservation_id=made.pk,
            user=alice,
            end=at(14),
            version=made.version,
            now=at(10),
        )
    longer = change(
        reservation_id=made.pk, user=alice, end=at(13), version=made.version, now=at(10)
    )
    assert (longer.kind, longer.end, longer.booked_end) == (Kind.FIRM, at(13), at(13))
    assert balance(made)[0] == WEIGHT * 4 * HOUR
    tick.tick(at(10, 1))
    longer.refresh_from_db()
    assert longer.end > at(13), "it stays on after the new end"


@pytest.mark.once
def test_ones_own_next_booking_is_no_way_around_the_limit_of_gpus(lab, alice) -> None:
    lab.set(gpus_at_once=2)
    made = stays_on(lab, alice)
    lab.book(alice, lab.gpus[1:3], at(13), 1, now=at(9, 30))
    made.refresh_from_db()
    assert made.end == at(13)


@pytest.mark.once
def test_the_api_asks_and_shows_it(gpus, alice, hour) -> None:
    call = Caller(alice)
    made = call("POST", "/reservations", wish(gpus[:1], hour, overstay=True)).body
    assert (made["stays_on"], made["overstay"]) == (True, None)
    off = call("POST", f"/reservations/{made['id']}/overstay", {"wanted": False})
    assert (off.status_code, off.body["stays_on"]) == (200, False)
    bad = call("POST", f"/reservations/{made['id']}/overstay", {"wanted": "maybe"})
    assert bad.status_code == 422


@pytest.mark.once
def test_a_site_may_let_nobody_stay_on(lab, alice) -> None:
    lab.set(overstay_seconds=0)
    made = lab.book(alice, lab.gpus[:1], NOW, 2)
    with pytest.raises(errors.NotChangeable):
        set_overstay(reservation_id=made.pk, user=alice, now=at(9, 1))
