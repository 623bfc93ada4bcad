"""Co-users: same Account, may use, never check in, change or pay."""

from datetime import timedelta

import pytest

from gpuportal.board.board_snapshot import holders_for, load_board, viewer_of
from reservations.booking.booking_change import change
from reservations.booking.release import cancel, release
from reservations.booking.relocation import relocate_rest
from reservations.models import CoUser, Notice
from reservations.notifications.queries import notices_of
from reservations.notifications.text.sharing_text import MOST_CO_USERS, CannotShare
from reservations.presence.check_in import keep_idle
from reservations.presence.holders import current_holdings
from reservations.rules.errors import NotAllowed, NotChangeable, NotFound
from reservations.sharing import co_use, offers
from reservations.store.booking_facts import site_policy
from reservations.store.calendar_queries import Reader, calendar_page
from tests.factories import make_membership, make_user
from tests.reservations.conftest import NOW, at


@pytest.mark.once
def test_only_the_owner_shares_and_only_with_members_of_the_account(
    lab, alice, bob, carol
) -> None:
    row = lab.book(alice, lab.gpus[:1], NOW, 4)

    def share(user, name):
        return co_use.share(reservation_id=row.pk, user=user, username=name, now=NOW)

    with pytest.raises(NotFound):
        share(alice, "carol")
    with pytest.raises(NotFound):
        share(alice, "nobody")
    with pytest.raises(CannotShare, match="yours already"):
        share(alice, "alice")
    with pytest.raises(NotAllowed):
        share(bob, "bob")
    made = share(alice, "bob")
    assert share(alice, "bob").pk == made.pk, "twice is once"
    (told,) = notices_of(bob, most=5)
    assert told.text.startswith("Alice shares the booking Mon 2 Mar")

    with pytest.raises(NotAllowed):
        co_use.unshare(reservation_id=row.pk, user=carol, co_user_id=bob.pk, now=NOW)
    assert co_use.unshare(
        reservation_id=row.pk, user=bob, co_user_id=bob.pk, now=NOW
    ), "a co-user may leave"
    assert not co_use.unshare(
        reservation_id=row.pk, user=alice, co_user_id=bob.pk, now=NOW
    )
    for number in range(MOST_CO_USERS):
        make_membership(make_user(f"friend{number}"), "vision")
        share(alice, f"friend{number}")
    with pytest.raises(CannotShare):
        share(alice, "bob")
    release(reservation_id=row.pk, user=alice, now=NOW + timedelta(hours=1))
    with pytest.raises(NotChangeable):
        share(alice, "bob")


def test_a_co_user_may_use_it_but_not_change_cancel_keep_or_offer_it(
    lab, alice, bob
) -> None:
    row = lab.book(alice, lab.gpus[:1], at(13), 2)
    co_use.share(reservation_id=row.pk, user=alice, username="bob", now=NOW)
    refused = (
        lambda: cancel(reservation_id=row.pk, user=bob, now=NOW),
        lambda: keep_idle(reservation_id=row.pk, user=bob, now=NOW),
        lambda: release(reservation_id=row.pk, user=bob, now=NOW),
        lambda: change(reservation_id=row.pk, user=bob, version=row.version, now=NOW),
        lambda: offers.offer(reservation_id=row.pk, user=bob, to="alice", now=NOW),
    )
    for act in refused:
        with pytest.raises(NotAllowed):
            act()
    assert row.ledger.get().membership.user == alice, "the owner pays"


def test_board_calendar_and_nodes_know_who_shares_a_running_one(
    lab, alice, bob, carol
) -> None:
    start = NOW
    row = lab.book(alice, lab.gpus[:1], start, 4)
    gpu = lab.gpus[0].pk
    co_use.share(reservation_id=row.pk, user=alice, username="bob", now=start)
    soon = start + timedelta(seconds=5)
    held = current_holdings(soon)[gpu]
    assert held.shared_with(bob.pk) and held.shared_with("bob")
    assert not held.is_of(bob.pk) and not held.shared_with(carol.pk)

    board = load_board(soon)
    holders = {
        user.username: holders_for(board, viewer_of(user, names_visible=True))[str(gpu)]
        for user in (alice, bob, carol)
    }
    assert [holders[n]["shared"] for n in ("alice", "bob", "carol")] == [
        False,
        True,
        False,
    ]
    assert not holders["bob"]["mine"]

    def entry(user):
        policy = site_policy()
        reader = Reader.of(user, policy)
        page = calendar_page(
            start, start + timedelta(hours=9), reader=reader, policy=policy, now=soon
        )
        return page.reservations[0]

    shared = [{"id": bob.pk, "user": "Bob", "login": "bob"}]
    assert entry(alice)["co_users"] == shared
    assert entry(bob)["shared"] is True
    assert entry(bob)["co_users"] == []
    assert "co_users" not in entry(carol)

    moved = relocate_rest(
        reservation_id=row.pk,
        gpu_ids=[lab.gpus[1].pk],
        actor=alice,
        now=soon,
        reason="look again",
    )
    assert CoUser.objects.sharing().filter(reservation=moved, user=bob).exists()
    bob.memberships.update(active=False)
    assert not current_holdings(soon)[lab.gpus[1].pk].co_users, "he left the group"
    bob.memberships.update(active=True)
    co_use.unshare(reservation_id=moved.pk, user=alice, co_user_id=bob.pk, now=soon)
    assert not current_holdings(soon)[lab.gpus[1].pk].co_users
    texts = [one.text for one in notices_of(bob, most=5)]
    assert "no longer shared" in texts[0]
    assert Notice.objects.filter(user=bob).count() == 2
