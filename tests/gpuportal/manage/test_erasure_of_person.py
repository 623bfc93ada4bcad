"""A person is erased: no text names them, balances stay, and others are not
affected.
"""

from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import IntegrityError, models, transaction
from django.utils import timezone

from gpuportal.manage.erasure_of_person import erase
from placement.models import Job, JobEvent, StoredPlan
from reservations import tick
from reservations.accounts.name_removal import NotErasable, StillHolds
from reservations.accounts.tree import service as accounts
from reservations.accounts.tree.tree_edits import Edit
from reservations.booking.release import release
from reservations.booking.service import book
from reservations.models import (
    Account,
    AuditEntry,
    LedgerEntry,
    Membership,
    Notice,
    User,
)
from reservations.notifications.queries import notices_with_text
from reservations.notifications.service import notify
from reservations.sharing.inquiry import ask_holder
from reservations.store.audit_log import audit_act
from telemetry.alerts.service import open_alert
from tests.factories import make_account, make_gpus, make_membership, make_user

pytestmark = pytest.mark.django_db
NAMES = ("zebulon", "Zebulon Ångström", "zeb_unix", "zeb@uni.example")


@pytest.fixture
def person(db) -> User:
    root = make_account("institute")
    make_account("vision", parent=root)
    user = make_user(
        NAMES[0], display_name=NAMES[1], unix_user=NAMES[2], email=NAMES[3]
    )
    make_membership(user, "vision", is_head=True)
    return user


def texts_of_everything() -> dict[str, str]:
    """Return every text of every row of every table, by its place."""
    found = {}
    for model in apps.get_models():
        columns = [
            f.name
            for f in model._meta.concrete_fields
            if isinstance(f, models.CharField | models.TextField | models.JSONField)
        ]
        for row in model._default_manager.order_by().values("pk", *columns):
            for name in columns:
                found[f"{model.__name__} {row['pk']} {name}"] = str(row[name])
    return found


def naming() -> list[str]:
    return [
        f"{where}: {text[:80]}"
        for where, text in texts_of_everything().items()
        if any(name.lower() in text.lower() for name in NAMES)
    ]


def live_past(person: User, omar: User) -> None:
    """Let the person and others act so that names are left behind."""
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    gpus = make_gpus(2)
    made = book(
        user=person,
        membership=None,
        gpu_ids=[gpus[0].pk],
        start=now,
        end=now + timedelta(hours=4),
        purpose="zebulon's thesis",
        now=now,
    )
    tick.tick(now)
    release(
        reservation_id=made.pk,
        user=omar,
        now=now + timedelta(hours=1),
        reason="asked by Zebulon Ångström",
    )
    made.refresh_from_db()
    plan = StoredPlan.objects.create(
        owner=person, title="zebulon's plan", spec={}, workload={}, plan={}
    )
    job = Job.objects.create(
        reservation=made,
        owner=person,
        plan=plan,
        name="zebulon 1",
        kind="script",
        script="print('zebulon')",
        last_lines=["hello zebulon"],
        node=gpus[0].node,
        state="done",
    )
    JobEvent.objects.create(job=job, new="done", actor="zebulon")
    audit_act(
        verb="response.tell",
        subject="alert:1",
        actor=None,
        now=now,
        holder="zebulon",
        login="zeb_unix",
    )
    open_alert(
        gpu_id=gpus[0].pk,
        rule="intruder",
        now=now,
        detail={"login": "zeb_unix", "others": ["zeb_unix", "zebulonia"]},
    )
    vision = Account.objects.get(name="vision")
    edit = Edit(
        "account",
        vision.pk,
        vision.version,
        {"shares": 3, "title": "Lab of Zebulon Ångström"},
    )
    accounts.save(edits=[edit], actor=omar, reason="for zebulon", now=now)
    notify(user=person, kind=Notice.Kind.RELEASED, detail={"text": "zebulon"}, now=now)
    other = make_user("zebulonia")
    make_membership(other, "vision")
    notify(
        user=other, kind=Notice.Kind.RELEASED, detail={"text": "by Zebulon"}, now=now
    )


def test_nothing_names_the_person_and_every_balance_stays(
    person, omar, settings, django_capture_on_commit_callbacks
) -> None:
    live_past(person, omar)
    log = Path(settings.MEDIA_ROOT) / "logs" / f"{Job.objects.get().pk}-1.log"
    log.parent.mkdir(parents=True)
    log.write_text("zebulon was here")
    balances = list(
        LedgerEntry.objects.order_by("pk").values_list(
            "pk", "membership_id", "reservation_id", "kind", "gpu_seconds", "at"
        )
    )
    acts = list(
        AuditEntry.objects.order_by("pk").values_list(
            "pk", "at", "actor_id", "verb", "subject"
        )
    )
    assert len(naming()) > 12
    with django_capture_on_commit_callbacks(execute=True):
        alias = erase_in_test(person, omar)
    assert [each for each in naming() if "zebulonia" not in each.lower()] == []
    assert not log.exists()
    person.refresh_from_db()
    assert (person.username, str(person)) == (alias, f"erased-{person.pk}")
    assert not person.is_active and not person.has_usable_password()
    # A person with a similar name is not affected.
    assert User.objects.filter(username="zebulonia", is_active=True).exists()
    assert any("zebulonia" in text for text in texts_of_everything().values())
    again = LedgerEntry.objects.order_by("pk").values_list(
        "pk", "membership_id", "reservation_id", "kind", "gpu_seconds", "at"
    )
    assert list(again) == balances
    kept = AuditEntry.objects.order_by("pk").values_list(
        "pk", "at", "actor_id", "verb", "subject"
    )
    assert list(kept)[: len(acts)] == acts
    assert not Membership.objects.filter(user=person, active=True).exists()
    assert AuditEntry.objects.get(verb="person.erased").subject == f"user:{person.pk}"
    call_command("check_books", stdout=StringIO())
    with pytest.raises(NotErasable):
        erase_in_test(person, omar)


def erase_in_test(person: User, omar: User) -> str:
    return erase(
        user_id=person.pk, typed=person.username, actor=omar, now=timezone.now()
    )


def test_only_a_strike_out_passes_the_append_only_tables(person, omar) -> None:
    live_past(person, omar)
    row = LedgerEntry.objects.first()
    entry = AuditEntry.objects.exclude(detail={}).first()
    for act in (
        lambda: LedgerEntry.objects.filter(pk=row.pk).update(reason="other"),
        lambda: LedgerEntry.objects.filter(pk=row.pk).update(
            reason="(erased)", gpu_seconds=0
        ),
        lambda: LedgerEntry.objects.filter(pk=row.pk).update(gpu_seconds=0),
        lambda: AuditEntry.objects.filter(pk=entry.pk).update(detail={}),
        lambda: AuditEntry.objects.filter(pk=entry.pk).update(
            detail={"erased": True}, actor=omar, verb="x"
        ),
        lambda: AuditEntry.objects.filter(pk=entry.pk).delete(),
    ):
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            act()
    LedgerEntry.objects.filter(pk=row.pk).update(reason="(erased)")
    AuditEntry.objects.filter(pk=entry.pk).update(detail={"erased": True})


def test_messages_to_holders_and_own_settings_go_with_the_person(person, omar) -> None:
    """The person's own texts are deleted, even if they name nobody."""
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    other = make_user("olga")
    make_membership(other, "vision")
    held = book(
        user=other,
        membership=None,
        gpu_ids=[make_gpus(1)[0].pk],
        start=now + timedelta(days=1),
        end=now + timedelta(days=1, hours=2),
        now=now,
    )
    User.objects.filter(pk=person.pk).update(
        time_zone="Asia/Kathmandu", tour_seen_at=now
    )
    person.refresh_from_db()
    ask_holder(
        reservation_id=held.pk, user=person, message="My son is ill, please", now=now
    )
    erase_in_test(person, omar)
    assert "My son" not in str(texts_of_everything())
    [told] = notices_with_text(Notice.objects.filter(user=other), other)
    assert "The message was erased" in told.text
    person.refresh_from_db()
    assert (person.time_zone, person.tour_seen_at) == ("", None)


@pytest.mark.once
def test_who_holds_something_or_runs_the_site_is_not_erased(person, omar) -> None:
    now = timezone.now()
    with pytest.raises(NotErasable, match="Type “zebulon”"):
        erase(user_id=person.pk, typed="Zebulon", actor=omar, now=now)
    with pytest.raises(NotErasable, match="An admin cannot be erased"):
        erase(user_id=omar.pk, typed="omar", actor=None, now=now)
    gpus = make_gpus(1)
    hour = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
    book(
        user=person,
        membership=None,
        gpu_ids=[gpus[0].pk],
        start=hour,
        end=hour + timedelta(hours=1),
        now=now,
    )
    with pytest.raises(StillHolds, match="holds 1 reservation"):
        erase_in_test(person, omar)
    with pytest.raises(CommandError, match="holds 1 reservation"):
        call_command("erase_person", "zebulon", confirm="zebulon")
    with pytest.raises(CommandError, match="no login"):
        call_command("erase_person", "nobody", confirm="nobody")
    assert naming()


def test_the_operator_ends_what_is_held_then_types_the_login(
    client, person, omar
) -> None:
    now = timezone.now()
    hour = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
    book(
        user=person,
        membership=None,
        gpu_ids=[make_gpus(1)[0].pk],
        start=hour,
        end=hour + timedelta(hours=1),
        now=now,
    )
    url = f"/manage/people/{person.pk}/erase/"
    client.force_login(person)
    assert client.get(url).status_code == client.post(url).status_code == 403
    assert client.get("/manage/people/").status_code == 403
    client.force_login(omar)
    assert b"zeb@uni.example" in client.get("/manage/people/", {"q": "zeb@"}).content
    for kind in ("guest", "head", "new", "nowhere", "off"):
        page = client.get("/manage/people/", {"kind": kind, "sort": "newest"})
        assert (b"zeb@uni" in page.content) == (kind == "head")
    assert b"End all of them" in client.get(url).content
    assert client.post(url, {"typed": "zebulon"}).status_code == 409
    assert client.post(url, {"act": "end"}).status_code == 302
    wrong = client.post(url, {"typed": "zebulo"})
    assert "Type “zebulon” to confirm" in wrong.content.decode()
    assert client.post(url, {"typed": "zebulon"}).status_code == 302
    person.refresh_from_db()
    assert person.erased_at is not None
    assert b"was erased" in client.get(url).content
