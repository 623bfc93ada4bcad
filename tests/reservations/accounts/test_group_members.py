"""Heads add and remove members and invite by link, within the group's quota."""

from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from reservations.accounts import group_members, group_quota
from reservations.models import (
    Account,
    AuditEntry,
    GroupLink,
    Membership,
    SitePolicy,
    TreeChange,
)
from reservations.rules.errors import NotFound
from reservations.rules.lifecycle import State
from tests.factories import make_account, make_membership, make_reservation, make_user

pytestmark = pytest.mark.django_db


@pytest.fixture
def head(lab, alice, bob, carol):
    Membership.objects.filter(user=alice).update(is_head=True)
    return alice


@pytest.fixture
def nora(db):
    return make_user("nora")


def vision() -> Account:
    return Account.objects.get(name="vision")


def browser(user) -> Client:
    client = Client()
    client.force_login(user)
    return client


def make_link(client: Client, **fields: object) -> str:
    form = {"act": "link", "days": "7", "most_joins": "30"} | fields
    answer = client.post("/group/", form)
    assert answer.status_code == 200, answer.content.decode()
    assert "no-store" in answer["Cache-Control"]
    link: str = answer.context["fresh_link"]
    assert link in answer.content.decode()
    return link.removeprefix("http://testserver")


def test_a_head_adds_and_removes_a_member(head, nora) -> None:
    mine = browser(head)
    assert "Add a member" in mine.get("/group/").content.decode()
    nobody = mine.post("/group/", {"act": "add", "username": "nobody"})
    assert nobody.status_code == 409
    assert "no person with the user name “nobody”" in nobody.content.decode()
    assert mine.post("/group/", {"act": "add", "username": " nora "}).status_code == 302
    member = nora.memberships.get(account=vision())
    assert (member.active, member.is_head, member.shares) == (True, False, 1)
    again = mine.post("/group/", {"act": "add", "username": "nora"})
    assert again.status_code == 409
    assert "is already a member of this group" in again.content.decode()
    assert TreeChange.objects.first().actor == head
    assert AuditEntry.objects.filter(verb="tree.edit", actor=head).exists()
    gone = {"act": "remove", "member": member.pk}
    assert mine.post("/group/", gone).status_code == 302
    member.refresh_from_db()
    assert not member.active
    assert mine.post("/group/", gone).status_code == 409
    # A member who was removed can come back.
    assert mine.post("/group/", {"act": "add", "username": "nora"}).status_code == 302
    member.refresh_from_db()
    assert member.active


def test_new_members_do_not_raise_the_quota_of_the_group(head, bob, nora) -> None:
    default = SitePolicy.current().quota_gpu_seconds
    below = make_account("vision-below", parent=vision(), quota_gpu_seconds=50)
    make_membership(make_user("deep"), below)
    group = vision()
    before = 2 * default + 50
    assert group.quota_gpu_seconds is None
    assert group_quota.sum_of_members(group) == before
    browser(head).post("/group/", {"act": "add", "username": "nora"})
    group.refresh_from_db()
    assert group.quota_gpu_seconds == before
    link = make_link(browser(head))
    other = make_user("olga")
    assert browser(other).post(link).status_code == 302
    group.refresh_from_db()
    assert group.quota_gpu_seconds == before
    # One that the operator set stays as it is.
    Account.objects.filter(pk=group.pk).update(quota_gpu_seconds=7)
    browser(head).post("/group/", {"act": "add", "username": make_user("pia").username})
    group.refresh_from_db()
    assert group.quota_gpu_seconds == 7


def test_members_with_bookings_and_heads_are_not_removed(lab, head, bob) -> None:
    mine = browser(head)
    own = bob.memberships.get()
    make_reservation(bob, lab.gpus[:1], state=State.CONFIRMED)
    held = mine.post("/group/", {"act": "remove", "member": own.pk})
    assert held.status_code == 409
    assert "still hold reservations" in held.content.decode()
    Membership.objects.filter(pk=own.pk).update(is_head=True)
    refused = mine.post("/group/", {"act": "remove", "member": own.pk})
    assert refused.status_code == 409
    assert "ask the lab admin" in refused.content.decode()


def test_a_stranger_and_a_foreign_head_change_nothing(head, carol, bob, nora) -> None:
    nlp = Account.objects.get(name="nlp")
    mine = browser(head)
    for act in (
        {"act": "add", "username": "nora"},
        {"act": "link", "days": "7", "most_joins": "3"},
        {"act": "remove", "member": carol.memberships.get().pk},
    ):
        assert mine.post(f"/group/?account={nlp.pk}", act).status_code == 403
        assert browser(bob).post("/group/", act).status_code == 403
    # A member of another group, through one's own page.
    foreign = {"act": "remove", "member": carol.memberships.get().pk}
    assert mine.post("/group/", foreign).status_code == 409
    for odd in ("x", "9" * 400, "-1", ""):
        bad = {"act": "remove", "member": odd}
        assert mine.post("/group/", bad).status_code == 409
        assert mine.post("/group/", {"act": "revoke", "link": odd}).status_code == 302
    assert carol.memberships.get().active
    assert not nora.memberships.exists()
    assert not GroupLink.objects.exists()


@pytest.mark.once
def test_people_join_by_a_link_until_it_ends(head, nora) -> None:
    mine = browser(head)
    link = make_link(mine, most_joins="2")
    token = link.split("/")[2]
    assert token not in str(GroupLink.objects.values().get())
    stranger = Client()
    answer = stranger.get(link)
    assert answer.status_code == 302
    assert answer["Location"].startswith("/login/?next=/join/")
    hers = browser(nora)
    page = hers.get(link)
    assert "Join Vision?" in page.content.decode()
    assert not nora.memberships.exists(), "looking joins nothing"
    assert hers.post(link).status_code == 302
    assert nora.memberships.get().account == vision()
    entry = AuditEntry.objects.get(verb="group.joined")
    assert (entry.actor, entry.subject) == (nora, f"account:{vision().pk}")
    assert "You are a member of Vision" in hers.get(link).content.decode()
    hers.post(link)
    assert GroupLink.objects.get().joins == 1
    assert browser(make_user("second")).post(link).status_code == 302
    third = make_user("third")
    assert browser(third).get(link).status_code == 404
    assert browser(third).post(link).status_code == 404
    assert not third.memberships.exists()
    assert "2 of 30" not in mine.get("/group/").content.decode()


def test_a_link_ends_by_revoking_by_time_and_with_its_maker(head, nora) -> None:
    mine, hers = browser(head), browser(nora)
    link = make_link(mine)
    row = GroupLink.objects.get()
    assert mine.post("/group/", {"act": "revoke", "link": row.pk}).status_code == 302
    assert hers.get(link).status_code == 404
    late = make_link(mine)
    GroupLink.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert hers.post(late).status_code == 404
    orphan = make_link(mine)
    Membership.objects.filter(user=head).update(is_head=False)
    assert hers.post(orphan).status_code == 404
    Membership.objects.filter(user=head).update(is_head=True)
    assert hers.get(orphan).status_code == 200
    Account.objects.filter(name="vision").update(archived_at=timezone.now())
    assert hers.post(orphan).status_code == 404
    assert hers.get("/join/" + "x" * 500 + "/").status_code == 404
    assert not nora.memberships.exists()


def test_two_who_join_at_once_by_the_last_place_are_one_member(
    head, nora, monkeypatch
) -> None:
    """The second read the link before the first had joined by it."""
    token = make_link(browser(head), most_joins="1").split("/")[2]
    read = group_members.link_of(token, now=timezone.now())
    second = make_user("second")
    group_members.join(text=token, user=nora, now=timezone.now())
    monkeypatch.setattr(group_members, "link_of", lambda _text, now: read)
    with pytest.raises(NotFound):
        group_members.join(text=token, user=second, now=timezone.now())
    assert not second.memberships.exists()
    assert GroupLink.objects.get().joins == 1
    assert AuditEntry.objects.filter(verb="group.joined").count() == 1
    # Nor by one that was revoked in between.
    GroupLink.objects.update(most_joins=5, revoked_at=timezone.now())
    with pytest.raises(NotFound):
        group_members.join(text=token, user=second, now=timezone.now())
    assert not second.memberships.exists()


def test_a_class_that_joins_at_once_is_not_asked_to_look_again(
    head, nora, monkeypatch
) -> None:
    """The first user who joins fixes the group's quota while the second is joining."""
    link = make_link(browser(head))
    kept, calls = group_members._quota_kept, []

    def beside(account: Account):
        edits = kept(account)
        if not calls:
            Account.objects.filter(pk=account.pk).update(version=account.version + 1)
        calls.append(account.version)
        return edits

    monkeypatch.setattr(group_members, "_quota_kept", beside)
    assert browser(nora).post(link).status_code == 302
    assert nora.memberships.get().active
    assert len(calls) == 2
    assert GroupLink.objects.get().joins == 1


@pytest.mark.once
def test_a_link_does_not_bring_back_who_was_removed(head, nora) -> None:
    mine, hers = browser(head), browser(nora)
    link = make_link(mine)
    assert hers.post(link).status_code == 302
    member = nora.memberships.get()
    gone = {"act": "remove", "member": member.pk}
    assert mine.post("/group/", gone).status_code == 302
    # The old link still works for others, and a new one is like it.
    for address in (link, make_link(mine)):
        refused = hers.post(address)
        assert refused.status_code == 409
        assert "ask its head to add you by name" in refused.content.decode()
        member.refresh_from_db()
        assert not member.active
    assert [row.joins for row in GroupLink.objects.order_by("pk")] == [1, 0]
    assert AuditEntry.objects.filter(verb="group.joined").count() == 1
    assert mine.post("/group/", {"act": "add", "username": "nora"}).status_code == 302
    member.refresh_from_db()
    assert member.active


@pytest.mark.once
def test_the_operator_can_switch_it_off(head, nora, omar) -> None:
    mine = browser(head)
    link = make_link(mine)
    policy = SitePolicy.current()
    policy.heads_add_members = False
    policy.save()
    page = mine.get("/group/").content.decode()
    assert "Add a member" not in page
    assert "can change quotas and members" in page
    assert mine.post("/group/", {"act": "add", "username": "nora"}).status_code == 409
    assert browser(nora).post(link).status_code == 404
    operator = browser(omar)
    url = f"/group/?account={vision().pk}"
    assert "Add a member" in operator.get(url).content.decode()
    assert operator.post(url, {"act": "add", "username": "nora"}).status_code == 302
    assert nora.memberships.get().active


@pytest.mark.once
def test_odd_lengths_of_a_link_are_refused_at_the_field(head) -> None:
    mine = browser(head)
    for odd in ({"days": "400"}, {"most_joins": "0"}, {"most_joins": "x"}):
        form = {"act": "link", "days": "7", "most_joins": "30"} | odd
        assert mine.post("/group/", form).status_code == 422
    for _ in range(group_members.LINKS_AT_ONCE):
        make_link(mine)
    full = mine.post("/group/", {"act": "link", "days": "7", "most_joins": "3"})
    assert full.status_code == 409


def test_the_tree_shows_the_quota_that_holds(lab, alice, bob, omar) -> None:
    default = SitePolicy.current().quota_gpu_seconds
    below = make_account("vision-below", parent=vision(), quota_gpu_seconds=5 * 3600)
    make_membership(make_user("deep"), below)
    # A large quota of a group without members does not raise the quota above it.
    empty = make_account("vision-empty", parent=vision(), quota_gpu_seconds=10**9)
    page = browser(omar).get("/manage/accounts/", {"account": lab.root.pk})
    quotas = {
        view.row.name: view.effective
        for view in page.context["views"]["own"] + page.context["views"]["below"]
    }
    shown = quotas["vision"]
    assert shown == f"{(2 * default + 5 * 3600) / 3600:g}"
    assert f'placeholder="{shown}"' in page.content.decode()
    assert group_quota.sum_of_members(vision()) == 2 * default + 5 * 3600
    # If the field of a group with its own quota is emptied, its members' sum holds.
    assert quotas["vision-below"] == f"{default / 3600:g}"
    assert quotas[empty.name] == "0"
