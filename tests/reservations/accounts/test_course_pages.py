"""A course from a list of students in one step. Its links work once."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from django.core import mail
from django.core.files.uploadedfile import SimpleUploadedFile
from django.utils import timezone

from reservations.accounts import invitation_mail
from reservations.accounts.course_csv import students_of
from reservations.accounts.csv_table import SheetRow
from reservations.accounts.tree.tree_csv import Person
from reservations.models import Account, AuditEntry, Invitation, User
from tests.factories import make_user

pytestmark = pytest.mark.django_db
NEW = "/manage/courses/new/"
FORM = {
    "name": "cs-101",
    "title": "Learning",
    "parent": "institute",
    "shares": "20",
    "quota_gpu_seconds": "1000",
    "member_quota_gpu_seconds": "8",
    "head": "alice",
    "ends_at": "2099-07-31",
}
GOOD = "a much longer sentence"


def test_a_site_without_passwords_makes_no_links(
    client, lab, alice, omar, settings
) -> None:
    User.objects.filter(memberships__account__name="vision").update(password="!")
    course = Account.objects.get(name="vision")
    Account.objects.filter(pk=course.pk).update(ends_at=FORM["ends_at"] + "T00:00Z")
    client.force_login(omar)
    assert "Links as CSV" in client.get("/manage/courses/").content.decode()
    settings.LOGIN_SETTINGS = replace(settings.LOGIN_SETTINGS, methods=("oidc",))
    assert "Links as CSV" not in client.get("/manage/courses/").content.decode()
    refused = client.post(f"/manage/courses/{course.pk}/invite/", follow=True)
    assert "This site has no passwords" in refused.content.decode()
    assert not Invitation.objects.exists()


def test_a_list_of_300_students_is_a_course_and_each_chooses_a_password_once(
    client, lab, alice, bob, omar, django_assert_max_num_queries
) -> None:
    User.objects.filter(pk=bob.pk).update(email="Bob@uni.example")
    rows = "".join(f"=Student {n};s{n}@uni.example\n" for n in range(299))
    text = "name;mail\n" + rows + "Bob;bob@UNI.example\n"
    client.force_login(omar)
    looked = client.post(
        NEW, FORM | {"file": SimpleUploadedFile("l.csv", text.encode())}
    )
    assert looked.status_code == 200
    page = looked.content.decode()
    assert "300 students, 299 of them get a new account" in page
    assert not Account.objects.filter(name="cs-101").exists()
    more = {"text": text, "save": "1", "mark": looked.context["review"].mark}
    with django_assert_max_num_queries(75):
        assert client.post(NEW, FORM | more).status_code == 302
    course = Account.objects.get(name="cs-101")
    assert course.ends_at.year == 2099
    assert course.memberships.count() == 301
    assert course.memberships.get(is_head=True).user == alice
    assert course.memberships.get(user=bob).quota_gpu_seconds == 8 * 3600
    assert not User.objects.get(username="s7").has_usable_password()
    # Bob is known: only the others are invited.
    sent = client.post(f"/manage/courses/{course.pk}/invite/", {"by": "csv"})
    lines = sent.content.decode("utf-8-sig").splitlines()
    assert len(lines) == 300
    assert lines[1].startswith(
        "s0,'=Student 0,s0@uni.example,http://testserver/welcome/"
    )
    assert AuditEntry.objects.get(verb="people.invited").detail["users"]

    link = lines[1].rsplit(",", 1)[1].removeprefix("http://testserver")
    assert not Invitation.objects.filter(link_hash__contains=link[-20:-1]).exists()
    client.logout()
    assert client.get(link).url == "/welcome/"
    assert b"Welcome, s0" in client.get("/welcome/").content
    weak = client.post("/welcome/", {"password": "s0", "again": "s0"})
    assert weak.status_code == 422
    differ = client.post("/welcome/", {"password": GOOD, "again": "other"})
    assert b"The two passwords differ" in differ.content
    done = client.post("/welcome/", {"password": GOOD, "again": GOOD})
    assert (done.status_code, done.url) == (302, "/")
    assert client.get("/standing/").status_code == 200
    student = User.objects.get(username="s0")
    assert student.check_password(GOOD)
    client.logout()
    client.get(link)
    again = client.post("/welcome/", {"password": GOOD + "x", "again": GOOD + "x"})
    assert again.status_code == 404
    student.refresh_from_db()
    assert student.check_password(GOOD)


def test_an_old_or_replaced_link_and_a_switched_off_login_open_nothing(
    client, lab, omar
) -> None:
    course = Account.objects.get(name="vision")
    eve = make_user("eve")
    eve.set_unusable_password()
    eve.save()
    eve.memberships.create(account=course)
    client.force_login(omar)

    def link() -> str:
        sent = client.post(f"/manage/courses/{course.pk}/invite/", {"by": "csv"})
        return sent.content.decode().strip().rsplit("http://testserver", 1)[1]

    def opens(address: str) -> bool:
        client.logout()
        client.get(address)
        status = client.get("/welcome/").status_code
        client.force_login(omar)
        return status == 200

    first, second = link(), link()
    assert (opens(first), opens(second)) == (False, True)
    Invitation.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert not opens(second)
    third = link()
    User.objects.filter(pk=eve.pk).update(is_active=False)
    assert not opens(third)


def test_links_go_out_by_mail_and_those_that_fail_end(lab, omar, settings) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    settings.PORTAL_URL = "https://gpu.example"
    people = [make_user("eve", email="eve@uni.example"), make_user("nomail")]
    User.objects.filter(pk__in=[user.pk for user in people]).update(password="!x")
    now = timezone.now()
    sent = invitation_mail.send(
        user_ids=[user.pk for user in people], actor_id=omar.pk, now=now
    )
    assert sent == 1
    assert mail.outbox[0].to == ["eve@uni.example"]
    assert "https://gpu.example/welcome/" in mail.outbox[0].body
    assert Invitation.objects.get().user == people[0]
    assert AuditEntry.objects.filter(verb="invitation.mail-failed").count() == 1


def test_a_link_by_mail_names_its_last_day_in_german(omar, settings) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.locmem.EmailBackend"
    settings.PORTAL_URL = "https://gpu.example"
    eve = make_user("eve", email="eve@uni.example", language="de")
    User.objects.filter(pk=eve.pk).update(password="!x")
    now = datetime(2100, 10, 1, 8, 30, tzinfo=UTC)
    assert invitation_mail.send(user_ids=[eve.pk], actor_id=omar.pk, now=now) == 1
    assert re.search(r"bis \d{1,2}\. Okt 2100 08:30", mail.outbox[0].body)


def test_students_are_matched_by_login_then_mail_and_errors_name_their_row() -> None:
    people = {
        1: Person("anna", "Anna", "anna@uni.example"),
        2: Person("twin1", "T", "twin@uni.example"),
        3: Person("twin2", "T", "twin@uni.example"),
    }
    rows = [
        {"user": "anna", "mail": ""},
        {"user": "", "mail": "ANNA@uni.example"},
        {"user": "anna", "mail": "other@uni.example"},
        {"user": "", "mail": "twin@uni.example"},
        {"user": "", "mail": "Ännä.Ö@uni.example"},
        {"user": "", "mail": "anna@other.example"},
        {"user": "", "mail": ""},
        {"user": "two words", "mail": ""},
        {"user": "x", "mail": "nowhere"},
    ]
    sheet = [SheetRow(number, row) for number, row in enumerate(rows, 2)]
    found = students_of(sheet, people)
    logins = [(one.username, one.new) for one in found.students]
    assert logins == [("anna", False), ("anna.o", True), ("anna2", True)]
    assert [str(error).split(": ")[0] for error in found.errors] == [
        "Row 3, mail",
        "Row 4, user",
        "Row 5, mail",
        "Row 8, mail",
        "Row 9, user",
        "Row 10, mail",
    ]
