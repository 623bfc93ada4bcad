"""Edits of the tree: all or none, versions, history, undo, effects."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise

import pytest
from django.db import connection

from reservations.accounts.tree import service as accounts
from reservations.accounts.tree.tree_edits import Edit, EditsRefused, TreeStale
from reservations.booking.release import cancel
from reservations.models import Account, AuditEntry, Membership, TreeChange, User
from reservations.rules.errors import NotFound
from tests.factories import make_account, make_user
from tests.reservations.conftest import NOW, at

pytestmark = pytest.mark.django_db


def change(account: Account, **fields: object) -> Edit:
    return Edit("account", account.pk, account.version, fields)


def save(omar, *edits: Edit, **more):
    return accounts.save(edits=edits, actor=omar, reason="term", now=NOW, **more)


def test_several_edits_are_one_change_with_history_and_audit(lab, alice, omar) -> None:
    vision = Account.objects.get(name="vision")
    own = alice.memberships.get()
    made = save(
        omar,
        change(vision, shares=3, quota_gpu_seconds=900),
        Edit("member", own.pk, 1, {"is_head": True, "shares": 2}),
        Edit("account", None, None, {"name": "robots", "parent": "vision"}),
        Edit("user", None, None, {"username": "eve", "display_name": "Eve"}),
        Edit("member", None, None, {"user": "eve", "account": "robots"}),
    )
    vision.refresh_from_db()
    own.refresh_from_db()
    assert (vision.shares, vision.quota_gpu_seconds, vision.version) == (3, 900, 2)
    assert vision.hue == 210
    assert (own.is_head, own.shares) == (True, 2)
    robots = Account.objects.get(name="robots")
    assert robots.parent == vision
    eve = User.objects.get(username="eve")
    assert not eve.has_usable_password()
    assert eve.memberships.get().account == robots
    newest = vision.history.order_by("-history_id").first()
    assert (newest.shares, newest.hue, newest.history_user) == (3, 210, omar)
    assert newest.history_change_reason == "term"
    assert {row.table for row in made.rows.all()} == {"account", "member"}
    assert made.rows.count() == 4
    row = made.rows.get(table="account", row_pk=vision.pk)
    assert (row.before["shares"], row.after["shares"]) == (1, 3)
    entry = AuditEntry.objects.get(verb="tree.edit")
    assert (entry.actor, entry.reason) == (omar, "term")
    assert entry.subject == f"change:{made.pk}"


def test_all_or_none_and_every_problem_is_named(lab, alice, omar) -> None:
    vision = Account.objects.get(name="vision")
    nlp = Account.objects.get(name="nlp")
    with pytest.raises(EditsRefused) as caught:
        save(
            omar,
            change(nlp, shares=7),
            change(vision, parent="nowhere"),
            Edit("account", None, None, {"name": "nlp"}),
            Edit("account", None, None, {"name": "two words"}),
            Edit("member", None, None, {"user": "alice", "account": "vision"}),
            Edit("member", None, None, {"user": "ghost", "account": "nlp"}),
            Edit("account", 10**6, 1, {"shares": 1}),
            change(lab.root, shares=-1),
        )
    text = caught.value.text()
    for part in (
        "there is no group “nowhere”",
        "there is already a group “nlp”",
        "“two words” is not a valid name",
        "is already a member of this group",
        "no login “ghost”",
        "no such group",
        "not between 0",
    ):
        assert part in text
    nlp.refresh_from_db()
    assert nlp.shares == 1
    assert not TreeChange.objects.exists()


@pytest.mark.once
def test_no_account_is_moved_below_itself(lab, omar) -> None:
    vision = Account.objects.get(name="vision")
    with pytest.raises(EditsRefused, match="its own parent"):
        save(omar, change(lab.root, parent="vision"))
    save(omar, Edit("account", None, None, {"name": "deep", "parent": "vision"}))
    with pytest.raises(EditsRefused, match="its own parent"):
        save(omar, change(vision, parent="deep"))
    names = ["deep", *(f"level-{number}" for number in range(30))]
    chain = [
        Edit("account", None, None, {"name": name, "parent": above})
        for above, name in pairwise(names)
    ]
    with pytest.raises(EditsRefused, match="more than 30 levels"):
        save(omar, *chain)
    save(omar, *chain[:27])


def test_a_stale_edit_is_refused(lab, omar) -> None:
    vision = Account.objects.get(name="vision")
    save(omar, change(vision, shares=2))
    with pytest.raises(TreeStale):
        save(omar, change(vision, shares=5))
    vision.refresh_from_db()
    assert vision.shares == 2


def test_changes_are_undone_in_any_order_unless_something_came_later(
    lab, alice, omar
) -> None:
    vision = Account.objects.get(name="vision")
    own = alice.memberships.get()
    first = save(omar, change(vision, shares=5, ends_at=NOW + timedelta(days=9)))
    second = save(omar, Edit("member", own.pk, 1, {"shares": 9}))
    third = save(
        omar,
        Edit("account", None, None, {"name": "robots", "parent": "institute"}),
        Edit("member", None, None, {"user": "alice", "account": "robots"}),
    )
    undone = accounts.undo(change_id=first.pk, actor=omar, now=NOW)
    vision.refresh_from_db()
    assert (vision.shares, vision.ends_at, vision.version) == (1, None, 3)
    with pytest.raises(TreeStale):
        accounts.undo(change_id=first.pk, actor=omar, now=NOW)
    accounts.undo(change_id=third.pk, actor=omar, now=NOW)
    assert Account.objects.get(name="robots").archived_at == NOW
    assert alice.memberships.filter(active=True).get() == own
    # Redo, then another edit of the same row: neither can be undone any more.
    accounts.undo(change_id=undone.pk, actor=omar, now=NOW)
    own.refresh_from_db()
    save(omar, Edit("member", own.pk, own.version, {"shares": 4}))
    with pytest.raises(TreeStale):
        accounts.undo(change_id=second.pk, actor=omar, now=NOW)
    with pytest.raises(NotFound):
        accounts.undo(change_id=10**6, actor=omar, now=NOW)


def test_who_holds_something_is_not_removed_and_comes_back_with_a_clean_sheet(
    lab, alice, omar
) -> None:
    own = alice.memberships.get()
    Membership.objects.filter(pk=own.pk).update(is_head=True, shares=8)
    booked = lab.book(alice, lab.gpus[:1], at(12), 1)
    leave = Edit("member", own.pk, 1, {"active": False})
    with pytest.raises(EditsRefused, match="alice still hold"):
        save(omar, leave)
    accounts_below = change(Account.objects.get(name="vision"), archived=True)
    with pytest.raises(EditsRefused, match="alice still hold"):
        save(omar, accounts_below)

    cancel(reservation_id=booked.pk, user=alice, now=NOW)
    save(omar, leave)
    save(omar, Edit("member", None, None, {"user": "alice", "account": "vision"}))
    own.refresh_from_db()
    assert (own.active, own.is_head, own.shares) == (True, False, 1)


def test_archiving_takes_everything_below_with_it_and_its_undo_brings_it_back(
    lab, alice, bob, omar
) -> None:
    vision = Account.objects.get(name="vision")
    save(omar, Edit("account", None, None, {"name": "deep", "parent": "vision"}))
    bobs = bob.memberships.get()
    save(omar, Edit("member", bobs.pk, 1, {"active": False}))
    made = save(omar, change(vision, archived=True), kind=TreeChange.Kind.ARCHIVE)
    assert Account.objects.filter(archived_at=NOW).count() == 2
    assert not Membership.objects.filter(active=True).exists()
    with pytest.raises(EditsRefused, match="is archived"):
        save(omar, Edit("member", None, None, {"user": "bob", "account": "vision"}))
    accounts.undo(change_id=made.pk, actor=omar, now=NOW)
    assert not Account.objects.exclude(archived_at=None).exists()
    # Bob had left before: he stays away.
    assert list(Membership.objects.filter(active=True)) == [alice.memberships.get()]


def test_a_guest_needs_a_last_day_and_somebody_who_answers(
    lab, alice, bob, carol, omar
) -> None:
    def guest(**fields: object) -> Edit:
        return Edit(
            "member", None, None, {"user": "carol", "account": "vision", **fields}
        )

    last = NOW + timedelta(days=3)
    with pytest.raises(EditsRefused, match="a guest needs a last day"):
        save(omar, guest(sponsor="alice"))
    with pytest.raises(EditsRefused, match="is not a member of this group"):
        save(omar, guest(sponsor="omar", expires_at=last))
    with pytest.raises(EditsRefused, match="a guest needs another member as sponsor"):
        save(omar, guest(sponsor="carol", expires_at=last))
    save(omar, guest(sponsor="alice", expires_at=last))
    assert carol.memberships.get(account__name="vision").is_guest
    own = alice.memberships.get()
    with pytest.raises(EditsRefused, match="is the sponsor of a guest"):
        save(omar, Edit("member", own.pk, own.version, {"active": False}))


@pytest.mark.once
def test_the_parts_of_a_big_edit_do_not_cost_a_query_a_row(
    lab, omar, django_assert_max_num_queries
) -> None:
    edits = [
        Edit("user", None, None, {"username": f"s{number}"}) for number in range(300)
    ] + [
        Edit("member", None, None, {"user": f"s{number}", "account": "vision"})
        for number in range(300)
    ]
    with django_assert_max_num_queries(25):
        save(omar, *edits)
    assert Membership.history.count() == 300


@pytest.mark.django_db(transaction=True)
def test_two_moves_at_once_make_no_ring() -> None:
    omar = make_user("omar")
    root = make_account("institute")
    pair = [make_account(name, parent=root) for name in ("left", "right")]
    start = threading.Barrier(2)

    def move(one: Account, below: Account) -> bool:
        start.wait(60)
        try:
            save(omar, change(one, parent=below.name))
        except EditsRefused:
            return False
        finally:
            connection.close()
        return True

    with ThreadPoolExecutor(2) as pool:
        moves = [pool.submit(move, one, other) for one, other in (pair, pair[::-1])]
        assert sorted(each.result(120) for each in moves) == [False, True]
    for one in Account.objects.all():
        one.clean()
