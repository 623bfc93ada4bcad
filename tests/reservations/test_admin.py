"""The operator's desk: hours, reasons, history, audit; nothing forged."""

import pytest
from django.test import Client
from django.urls import reverse

from reservations.models import (
    Account,
    AuditEntry,
    LedgerEntry,
    Membership,
    SitePolicy,
    User,
)
from tests.reservations.conftest import HOUR, at

MODELS = (
    "user",
    "account",
    "membership",
    "sitepolicy",
    "reservation",
    "ledgerentry",
    "latereturn",
    "auditentry",
    "apitoken",
)


@pytest.fixture
def desk(omar) -> Client:
    client = Client()
    client.force_login(omar)
    return client


def form_of(answer) -> dict[str, object]:
    """Return what a browser would send back unchanged."""
    form = answer.context["adminform"].form
    sent = {name: form[name].value() for name in form.fields}
    return {name: value for name, value in sent.items() if value not in (None, False)}


@pytest.mark.parametrize("model", MODELS)
def test_every_list_and_form_opens(lab, alice, desk, model) -> None:
    made = lab.book(alice, lab.gpus[:1], at(14), 1)
    assert (
        desk.get(reverse(f"admin:reservations_{model}_changelist")).status_code == 200
    )
    pk = {
        "user": alice.pk,
        "account": lab.root.pk,
        "membership": alice.memberships.get().pk,
        "sitepolicy": 1,
        "reservation": made.pk,
        "ledgerentry": LedgerEntry.objects.get().pk,
        "auditentry": AuditEntry.objects.get().pk,
    }.get(model)
    if pk is not None:
        page = reverse(f"admin:reservations_{model}_change", args=[pk])
        assert desk.get(page).status_code == 200


def test_a_quota_is_edited_in_hours_with_a_reason_and_history(lab, alice, desk) -> None:
    own = alice.memberships.get()
    page = reverse("admin:reservations_membership_change", args=[own.pk])
    form = form_of(desk.get(page)) | {"quota_gpu_seconds": "12.5"}
    refused = desk.post(page, form)
    assert "reason" in refused.context["adminform"].form.errors
    assert Membership.objects.get(pk=own.pk).quota_gpu_seconds is None
    assert desk.post(page, form | {"reason": "thesis"}).status_code == 302
    own.refresh_from_db()
    assert own.quota_gpu_seconds == 12.5 * HOUR
    entry = AuditEntry.objects.get(verb="admin.membership.changed")
    assert (entry.actor.username, entry.reason) == ("omar", "thesis")
    newest = own.history.first()
    assert (newest.quota_gpu_seconds, newest.history_change_reason) == (
        45_000,
        "thesis",
    )
    assert form_of(desk.get(page))["quota_gpu_seconds"] == 12.5


@pytest.mark.once
def test_the_policy_is_checked_as_a_whole(lab, desk) -> None:
    page = reverse("admin:reservations_sitepolicy_change", args=[1])
    form = form_of(desk.get(page)) | {"reason": "trial"}
    wrong = desk.post(page, form | {"longest_seconds": "60"})
    assert wrong.status_code == 200
    assert "longest_seconds" in wrong.context["adminform"].form.errors
    assert desk.post(page, form | {"quota_gpu_seconds": "100"}).status_code == 302
    assert SitePolicy.current().quota_gpu_seconds == 100 * HOUR


@pytest.mark.once
def test_accounts_cannot_form_a_ring(lab, desk) -> None:
    page = reverse("admin:reservations_account_change", args=[lab.root.pk])
    form = form_of(desk.get(page)) | {"reason": "trial"}
    below = Account.objects.get(name="vision")
    answer = desk.post(page, form | {"parent": below.pk})
    assert "parent" in answer.context["adminform"].form.errors


@pytest.mark.once
def test_a_unix_login_must_look_like_one(lab, alice, desk) -> None:
    page = reverse("admin:reservations_user_change", args=[alice.pk])
    form = form_of(desk.get(page)) | {
        "date_joined_0": "2026-01-01",
        "date_joined_1": "00:00:00",
    }
    form.pop("password", None)
    wrong = desk.post(page, form | {"unix_user": "../root"})
    assert "unix_user" in wrong.context["adminform"].form.errors
    assert desk.post(page, form | {"unix_user": "alice1"}).status_code == 302
    assert User.objects.get(pk=alice.pk).unix_user == "alice1"
    assert AuditEntry.objects.filter(verb="admin.user.changed").exists()


@pytest.mark.once
@pytest.mark.parametrize("model", ["ledgerentry", "auditentry", "reservation"])
def test_ledger_audit_and_reservations_cannot_be_forged(
    lab, alice, desk, model
) -> None:
    made = lab.book(alice, lab.gpus[:1], at(14), 1)
    pk = {
        "ledgerentry": LedgerEntry.objects.get().pk,
        "auditentry": AuditEntry.objects.get().pk,
        "reservation": made.pk,
    }[model]
    names = {"add": [], "delete": [pk]}
    for what, args in names.items():
        page = reverse(f"admin:reservations_{model}_{what}", args=args)
        assert desk.post(page, {"post": "yes"}).status_code == 403
    page = reverse(f"admin:reservations_{model}_change", args=[pk])
    assert desk.post(page, {"reason": "x"}).status_code == 403


@pytest.mark.once
def test_giving_back_at_the_desk_needs_a_reason(lab, alice, desk) -> None:
    made = lab.book(alice, lab.gpus[:1], at(12, day=30), 1, now=at(9, day=29))
    page = reverse("admin:reservations_reservation_changelist")
    form = {"action": "give_back", "_selected_action": [made.pk]}
    desk.post(page, form)
    made.refresh_from_db()
    assert made.state == "confirmed"
    desk.post(page, form | {"reason": "power cut"})
    made.refresh_from_db()
    assert made.state == "cancelled"
    assert AuditEntry.objects.get(verb="reservation.cancelled").reason == "power cut"


def test_students_have_no_desk(lab, alice) -> None:
    client = Client()
    client.force_login(alice)
    assert client.get(reverse("admin:index")).status_code == 302
