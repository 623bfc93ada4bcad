"""The chat of a group: its heads set it, notices of its bookings go there."""

import hashlib
import hmac
from datetime import timedelta

import pytest
from django.urls import reverse

from reservations.accounts import group_chat
from reservations.models import (
    Account,
    AuditEntry,
    Delivery,
    GroupChat,
    Membership,
    Notice,
    Reservation,
    User,
)
from reservations.notifications import delivery
from reservations.notifications.service import notify
from reservations.notifications.webhook_rules import WebhookRefused
from reservations.rules.errors import NotAllowed, NotFound
from tests.factories import make_account, make_membership, make_reservation
from tests.reservations.conftest import NOW
from tests.reservations.notifications.outside import receiver

pytestmark = pytest.mark.django_db(transaction=True)
MINUTE = timedelta(minutes=1)


@pytest.fixture
def hook(settings):
    settings.WEBHOOK_LOOPBACK_HTTP = True
    settings.PORTAL_URL = "https://gpu.example.org"
    with receiver() as server:
        yield server


@pytest.fixture
def head(lab, alice) -> User:
    Membership.objects.filter(user=alice).update(is_head=True)
    return alice


def account_of(user: User):
    return user.memberships.get().account


def lab_account() -> Account:
    return Account.objects.get(name="vision")


def set_chat(head: User, hook, name: str = "slack") -> str:
    return group_chat.set_chat(
        user=head,
        account_id=account_of(head).pk,
        url=hook.url,
        format_name=name,
        now=NOW,
    )


def released(user: User, lab, kind: str = "released", number: int = 0, **fields):
    """Tell a holder of a booking of theirs: one GPU, the same booking each time."""
    fields.setdefault("membership", user.memberships.get(account=lab_account()))
    start = NOW + timedelta(hours=number)
    row = Reservation.objects.filter(
        user=user, start=start, membership=fields["membership"]
    ).first() or make_reservation(user, lab.gpus[number : number + 1], start, **fields)
    return notify(
        user=user, kind=kind, reservation=row, detail={"reason": "idle"}, now=NOW
    )


def test_notices_of_members_bookings_go_to_the_group(head, bob, lab, hook):
    assert set_chat(head, hook) == ""
    released(bob, lab)
    released(bob, lab, "ending_soon", 1)  # frequent: of interest to its holder only
    notify(
        user=bob, kind="released", detail={"reason": "idle"}, now=NOW
    )  # of no booking
    [row] = Delivery.objects.filter(channel="group")
    assert delivery.due(now=NOW)["sent"] == 1
    [(_path, headers, body)] = hook.heard
    assert b"Bob: " in body
    assert b"https://gpu.example.org/reservations/" in body
    assert "X-Portal-Signature" not in headers
    row.refresh_from_db()
    assert row.state == "sent"


def test_bookings_of_another_group_do_not(head, bob, lab, hook):
    other = make_membership(bob, make_account("nlp"))
    set_chat(head, hook)
    released(bob, lab, membership=other)
    assert not Delivery.objects.filter(channel="group").exists()


def test_one_member_of_two_groups_is_told_to_each(head, bob, lab, hook):
    set_chat(head, hook)
    other = make_membership(bob, make_account("nlp"), is_head=True)
    group_chat.set_chat(
        user=bob,
        account_id=other.account_id,
        url=hook.url,
        format_name="ntfy",
        now=NOW,
    )
    released(bob, lab)
    released(bob, lab, number=1, membership=other)
    assert Delivery.objects.filter(channel="group").count() == 2
    for minute in range(3):
        delivery.due(now=NOW + minute * MINUTE)
    assert len(hook.heard) == 2
    kinds = {headers["Content-Type"].split(";")[0] for _, headers, _ in hook.heard}
    assert len(kinds) == 2
    assert {row.state for row in Delivery.objects.filter(channel="group")} == {"sent"}


def test_a_program_of_the_group_gets_signed_json(head, bob, lab, hook):
    secret = set_chat(head, hook, "portal")
    assert secret.startswith("whsec_")
    assert secret not in str(list(GroupChat.objects.values()))
    released(bob, lab)
    delivery.due(now=NOW)
    [(_path, headers, body)] = hook.heard
    signed = f"{headers['X-Portal-Timestamp']}.".encode() + body
    made = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    assert headers["X-Portal-Signature"] == f"sha256={made}"


@pytest.mark.once
def test_who_is_no_head_of_it_changes_nothing(head, bob, carol, lab, hook):
    pk = account_of(head).pk
    for act in (
        lambda: group_chat.set_chat(
            user=bob, account_id=pk, url=hook.url, format_name="slack", now=NOW
        ),
        lambda: group_chat.drop_chat(user=bob, account_id=pk, now=NOW),
        lambda: group_chat.enable_chat(user=carol, account_id=pk, now=NOW),
        lambda: group_chat.try_chat(user=carol, account_id=pk, now=NOW),
    ):
        with pytest.raises(NotAllowed):
            act()
    assert not GroupChat.objects.exists()
    with pytest.raises(NotFound):
        group_chat.try_chat(user=head, account_id=pk, now=NOW)


@pytest.mark.once
@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/x", "https://10.0.0.1/x", "https://[::1]/x", "file:///x"]
)
def test_inside_addresses_are_refused_as_for_a_person(head, lab, url):
    with pytest.raises(WebhookRefused):
        group_chat.set_chat(
            user=head,
            account_id=account_of(head).pk,
            url=url,
            format_name="slack",
            now=NOW,
        )


def test_a_chat_that_fails_is_tried_then_off_and_its_heads_hear_it(
    head, bob, lab, hook
):
    set_chat(head, hook)
    hook.answers = [503, 404, 404, 404, 404, 404, 404, 404, 404, 404, 404, 404]
    now = NOW
    for number in range(4):
        released(bob, lab, number=number)
    for _ in range(14):
        delivery.due(now=now)
        now += timedelta(hours=7)
        released(bob, lab)
    chat = GroupChat.objects.get()
    assert chat.webhook_disabled_at is not None
    [said] = Notice.objects.filter(kind="webhook_off")
    assert said.user == head
    assert said.detail["url"] == f"/group/?account={chat.account_id}"
    heard = len(hook.heard)
    released(bob, lab)
    delivery.due(now=now)
    assert len(hook.heard) == heard
    group_chat.enable_chat(user=head, account_id=chat.account_id, now=now)
    hook.answers = []
    released(bob, lab)
    delivery.due(now=now + timedelta(days=2))
    assert len(hook.heard) > heard


@pytest.mark.once
def test_what_waits_is_dropped_with_its_chat(head, bob, lab, hook):
    set_chat(head, hook)
    released(bob, lab)
    group_chat.drop_chat(user=head, account_id=account_of(head).pk, now=NOW)
    assert delivery.due(now=NOW)["dropped"] == 1
    assert hook.heard == []


def test_the_page_sets_tries_and_removes_it(client, head, bob, lab, hook):
    account = account_of(head)
    client.force_login(bob)
    assert client.get(reverse("group")).status_code == 403
    client.force_login(head)
    url = f"{reverse('group')}?account={account.pk}"
    assert "Chat of the group" in client.get(url).content.decode()
    bad = client.post(
        url, {"act": "chat-set", "url": "http://10.0.0.1/", "format": "slack"}
    )
    assert bad.status_code == 422
    good = {"act": "chat-set", "url": hook.url, "format": "mattermost"}
    assert client.post(url, good).status_code == 302
    page = client.get(url).content.decode()
    assert "Mattermost" in page
    assert client.post(url, {"act": "chat-try"}).status_code == 302
    row = Delivery.objects.get()
    assert (row.channel, row.notice.kind) == ("group", "trial")
    delivery.due(now=row.next_at)
    assert len(hook.heard) == 1
    client.post(url, {"act": "chat-try"})
    assert Delivery.objects.count() == 1, "one a minute"
    secret = client.post(url, good | {"format": "portal"})
    assert "whsec_" in secret.content.decode()
    assert client.post(url, {"act": "chat-drop"}).status_code == 302
    assert not GroupChat.objects.exists()
    verbs = list(AuditEntry.objects.order_by("pk").values_list("verb", flat=True))
    assert verbs[0] == "group.chat-set"
    assert verbs[-1] == "group.chat-dropped"
    assert hook.url not in str(list(AuditEntry.objects.values()))
