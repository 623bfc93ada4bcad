"""The operator's first page, the audit log and the page of a person, in Manage."""

import csv
import io
from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.urls import reverse
from django.utils import timezone

from gpuportal.manage.audit_text import sentence_of
from gpuportal.monitoring import health
from reservations.models import (
    AuditEntry,
    Delivery,
    Invitation,
    Notice,
    TreeChange,
    User,
)
from reservations.store.audit_log import audit_act
from telemetry.models import Alert
from tests.factories import (
    make_account,
    make_gpu,
    make_membership,
    make_node,
    make_user,
)

pytestmark = pytest.mark.django_db
PAGES = ("manage", "manage-audit", "manage-people", "manage-person-new")


@pytest.mark.once
@pytest.mark.parametrize("name", PAGES)
def test_only_the_operator_reaches_them(client, alice, omar, name) -> None:
    client.force_login(alice)
    assert client.get(reverse(name)).status_code == 403
    client.force_login(omar)
    assert client.get(reverse(name)).status_code == 200


@pytest.mark.once
def test_an_empty_site_names_the_first_steps(client, omar) -> None:
    client.force_login(omar)
    page = client.get(reverse("manage")).content.decode()
    assert "No group yet" in page
    assert reverse("manage-machine-add") in page
    make_membership(make_user(), "lab")
    make_node("node-a")
    page = client.get(reverse("manage")).content.decode()
    assert "No group yet" not in page
    assert reverse("manage-machine-add") not in page


def test_the_first_page_names_what_needs_the_operator(client, omar) -> None:
    client.force_login(omar)
    now = timezone.now()
    node = make_node("node-a")
    make_node("node-z", last_seen_at=now - timedelta(minutes=5))
    gpu = make_gpu(node, lost=True)
    page = client.get(reverse("manage")).content.decode()
    assert "1 node not live" in page
    assert "node-z" in page
    assert "1 GPU lost or missing" in page
    assert "1 open alert" not in page
    Alert.objects.create(rule="lost", gpu=gpu, opened_at=now, last_seen_at=now)
    nowhere = make_user("nora")
    fresh = User.objects.create(username="fresh", password="!x")
    make_membership(fresh, "vision")
    told = Notice.objects.create(user=nowhere, kind=Notice.Kind.TRIAL)
    Delivery.objects.create(
        notice=told,
        channel="mail",
        state="failed",
        next_at=now,
        done_at=now,
        error="no such mailbox",
    )
    page = client.get(reverse("manage")).content.decode()
    assert "1 open alert" in page
    assert "1 person cannot sign in yet" in page
    assert "1 person in no group" in page
    assert "nora" in page
    assert "1 notice not delivered since yesterday" in page
    assert "no such mailbox" in page


@pytest.mark.once
def test_nothing_to_do_is_said(client, omar, monkeypatch) -> None:
    client.force_login(omar)
    page = client.get(reverse("manage")).content.decode()
    assert "See the board: The portal&#x27;s periodic tasks are late" in page
    monkeypatch.setattr(health.PortalHealth, "troubles", lambda self: [])
    make_gpu(make_node("node-a"))
    make_account("lab")
    assert b"Nothing needs you now" in client.get(reverse("manage")).content


def test_the_audit_log_speaks_in_sentences_and_is_filtered(client, alice, omar) -> None:
    client.force_login(omar)
    node, now = make_node("node-b"), timezone.now()
    audit_act(
        verb="node.drain",
        subject=f"node:{node.pk}",
        actor=omar,
        now=now,
        reason="=new fans",
    )
    audit_act(
        verb="reservation.ended",
        subject="reservation:7",
        actor=None,
        now=now - timedelta(days=3),
    )
    audit_act(verb="job.turned-blue", subject="job:3", actor=alice, now=now)
    url = reverse("manage-audit")
    page = client.get(url).content.decode()
    assert "began to drain node-b" in page
    assert "node.drain" not in page
    assert "<strong>The portal</strong>" in page
    assert "ended reservation 7" in page
    assert "job: turned blue (job 3)" in page
    found = client.get(url, {"who": "portal"}).content.decode()
    assert "ended reservation 7" in found
    assert "drain" not in found.split("<tbody>")[1]
    found = client.get(url, {"area": "machines"}).content.decode()
    assert "began to drain" in found
    assert "reservation 7" not in found
    today = timezone.localtime(now).date().isoformat()
    assert "reservation 7" not in client.get(url, {"since": today}).content.decode()
    assert "No match." in client.get(url, {"q": "no such thing"}).content.decode()
    bad = client.get(url, {"since": "soon", "area": "x", "page": "9" * 30})
    assert bad.status_code == 200
    assert "not understood" in bad.content.decode()
    table = client.get(url, {"format": "csv", "q": "drain"})
    rows = list(csv.DictReader(io.StringIO(table.content.decode())))
    assert [row["sentence"] for row in rows] == ["began to drain node-b"]
    assert rows[0]["reason"] == "'=new fans"


@pytest.mark.once
def test_a_change_of_groups_names_them(client, omar) -> None:
    accounts = [make_account(f"g{n}", title=f"Group {n}") for n in range(5)]
    change = TreeChange.objects.create(actor=omar, reason="r", kind="edit")
    member = make_membership(omar, accounts[4])
    for table, pk in (
        ("member", member.pk),
        *(("account", one.pk) for one in accounts[:4]),
    ):
        change.rows.create(table=table, row_pk=pk, version_after=1)
    audit_act(
        verb="tree.edit",
        subject=f"change:{change.pk}",
        actor=omar,
        now=timezone.now(),
    )
    client.force_login(omar)
    page = client.get(reverse("manage-audit")).content.decode()
    assert (
        "changed groups or members "
        f"(Group 4, Group 0, Group 1 +2, change {change.pk})" in page
    )


def test_every_verb_that_can_be_written_reads_as_a_sentence() -> None:
    assert sentence_of("response.stop.dry-run", "alert 3") == (
        "took the step “stop” against a process on alert 3: dry run"
    )
    assert sentence_of("admin.user.changed", "user 3").startswith("changed a row")
    assert sentence_of("brand", "new") == "brand: changed (new)"


def test_a_person_is_added_changed_linked_and_signed_out(client, omar) -> None:
    client.force_login(omar)
    make_user("bob2")
    new = reverse("manage-person-new")
    taken = client.post(new, {"username": "BOB2", "display_name": "Bo"})
    assert taken.status_code == 422
    assert b"Another person has this user name." in taken.content
    wrong = client.post(new, {"username": "zoe", "unix_user": "Zoe Z"})
    assert wrong.status_code == 422
    assert b"Not a Unix login" in wrong.content
    made = client.post(new, {"username": "zoe", "display_name": "Zoe", "email": ""})
    zoe = User.objects.get(username="zoe")
    own = reverse("manage-person", args=[zoe.pk])
    assert made.url == own
    page = client.get(own).content.decode()
    assert "none yet" in page
    assert "In no group" in page
    answer = client.post(own, {"act": "link"})
    link = answer.context["password_link"]
    assert link in answer.content.decode()
    assert answer["Cache-Control"].startswith("max-age=0")
    again = client.post(own, {"act": "link"}).context["password_link"]
    assert Invitation.objects.filter(user=zoe).count() == 1
    # The newest link sets the password. The older one is invalid.
    other = client.__class__()
    assert (
        other.get(link.replace("http://testserver", ""), follow=True).status_code == 404
    )
    other.get(again.replace("http://testserver", ""))
    chosen = {"password": "quite a long one 7", "again": "quite a long one 7"}
    assert other.post(reverse("choose-password"), chosen).status_code == 302
    assert other.get(reverse("me")).status_code == 200
    assert "Sign out everywhere" in client.get(own).content.decode()
    assert client.post(own, {"act": "sign-out"}).status_code == 302
    assert other.get(reverse("me")).status_code == 302
    form = {
        "act": "save",
        "display_name": "Zoë",
        "email": "zoe@example.org",
        "unix_user": "zoe",
        "is_active": "on",
    }
    assert client.post(own, form).status_code == 302
    zoe.refresh_from_db()
    assert (zoe.display_name, zoe.unix_user, zoe.is_superuser) == ("Zoë", "zoe", False)
    entry = AuditEntry.objects.filter(verb="people.changed").first()
    assert entry is not None
    assert entry.detail["changes"]["unix_user"] == ["", "zoe"]
    # A name is erased with the person, so the log does not keep it.
    assert "Zo" not in str(entry.detail)
    assert "changed the account of Zoë" in client.get(own).content.decode()


def test_a_link_for_a_person_with_a_password_leaves_it_valid(
    client, alice, omar
) -> None:
    client.force_login(omar)
    own = reverse("manage-person", args=[alice.pk])
    assert client.post(own, {"act": "link"}).status_code == 200
    before = alice.password
    alice.refresh_from_db()
    assert alice.password == before
    assert Invitation.objects.get(user=alice).expires_at < timezone.now() + timedelta(
        days=3
    )
    # No mail server: the button is missing, and the action is refused in words.
    assert client.post(own, {"act": "mail"}).status_code == 409
    off = {"act": "save", "display_name": "Alice", "email": "", "unix_user": ""}
    client.post(own, off)
    alice.refresh_from_db()
    assert not alice.is_active
    assert client.post(own, {"act": "link"}).status_code == 409


@pytest.mark.once
def test_operators_cannot_shut_themselves_out(client, omar) -> None:
    client.force_login(omar)
    own = reverse("manage-person", args=[omar.pk])
    form = {"act": "save", "display_name": "Omar", "email": "", "unix_user": ""}
    answer = client.post(own, form)
    assert answer.status_code == 409
    assert b"remove your own rights" in answer.content
    omar.refresh_from_db()
    assert omar.is_operator


def test_switching_a_person_off_ends_their_sessions(client, alice, omar) -> None:
    other = client.__class__()
    other.force_login(alice)
    client.force_login(omar)
    assert Session.objects.count() == 2
    own = reverse("manage-person", args=[alice.pk])
    client.post(own, {"act": "save", "display_name": "A", "email": "", "unix_user": ""})
    assert Session.objects.count() == 1


def test_a_made_up_person_is_not_found(client, omar) -> None:
    client.force_login(omar)
    assert client.get("/manage/people/999999999999/").status_code == 404
    assert client.post("/manage/people/999999999999/").status_code == 404


@pytest.mark.once
def test_a_password_link_goes_out_by_mail(
    client, alice, omar, settings, mailoutbox
) -> None:
    settings.MAIL_CONFIGURED, settings.PORTAL_URL = True, "https://gpu.example.org"
    User.objects.filter(pk=alice.pk).update(email="alice@example.org")
    client.force_login(omar)
    own = reverse("manage-person", args=[alice.pk])
    assert b"Mail a password link" in client.get(own).content
    assert client.post(own, {"act": "mail"}).status_code == 302
    (mail,) = mailoutbox
    assert mail.to == ["alice@example.org"]
    path = mail.body.split("https://gpu.example.org")[1].split()[0]
    found = client.__class__().get(path, follow=True)
    assert found.status_code == 200
    assert b"alice" in found.content
