"""Logins: many names from one address, unwanted sessions, and stored data."""

from datetime import timedelta

import pytest
from axes.models import AccessAttempt, AccessLog
from django.contrib.sessions.models import Session
from django.test import Client
from django.utils import timezone

from gpuportal import tasks
from gpuportal.http.login_limits import KNOWN, MOST_STRANGE_NAMES, WINDOW
from tests.factories import make_user

pytestmark = pytest.mark.django_db
PASSWORD = "long enough, and known"


@pytest.fixture
def people():
    made = [make_user(f"student{number}") for number in range(3)]
    for user in made:
        user.set_password(PASSWORD)
        user.save()
    return made


def sign_in(name: str, password: str = "Winter2026!", address: str = "192.0.2.7"):
    client = Client(REMOTE_ADDR=address)
    return client.post("/login/", {"username": name, "password": password})


def spray(count: int, address: str = "192.0.2.7") -> list[int]:
    return [sign_in(f"name{n}", address=address).status_code for n in range(count)]


@pytest.mark.once
def test_many_names_from_one_address_are_refused(people):
    answers = spray(MOST_STRANGE_NAMES + 5)
    assert answers[:MOST_STRANGE_NAMES] == [200] * MOST_STRANGE_NAMES
    assert set(answers[MOST_STRANGE_NAMES:]) == {429}
    # Even the right password is not tried.
    assert sign_in("student0", PASSWORD).status_code == 429
    assert sign_in("student0", PASSWORD, address="192.0.2.8").status_code == 302


@pytest.mark.once
def test_a_lab_behind_one_address_is_not_locked_out(people):
    assert sign_in("student0", PASSWORD).status_code == 302
    spray(MOST_STRANGE_NAMES + 2)
    # It signed in from here before, so also after a typing error.
    assert sign_in("student0").status_code == 200
    assert sign_in("student0", PASSWORD).status_code == 302
    assert sign_in("student1", PASSWORD).status_code == 429


@pytest.mark.once
def test_people_who_are_known_there_do_not_count(people):
    now = timezone.now()
    for number in range(60):
        AccessLog.objects.create(
            username=f"name{number}", ip_address="192.0.2.7", attempt_time=now
        )
    assert set(spray(60)) == {200}
    assert sign_in("student1", PASSWORD).status_code == 302


def test_a_quarter_of_an_hour_later_all_may_try_again(people):
    spray(MOST_STRANGE_NAMES)
    assert sign_in("student1", PASSWORD).status_code == 429
    AccessAttempt.objects.update(attempt_time=timezone.now() - WINDOW)
    assert sign_in("student1", PASSWORD).status_code == 302


def test_a_link_that_leads_nowhere_begins_no_session():
    for number in range(20):
        answer = Client().get(f"/welcome/nothing-{number}/")
        assert answer.status_code == 404
        assert "sessionid" not in answer.cookies
    assert not Session.objects.exists()


def test_ended_sessions_and_old_logins_are_cleared(people):
    now = timezone.now()
    sign_in("student0", PASSWORD)
    kept = Session.objects.get()
    Session.objects.create(session_key="x" * 32, expire_date=now - timedelta(days=1))
    for age in (KNOWN + timedelta(days=1), timedelta(days=1)):
        row = AccessLog.objects.create(username="old", ip_address="192.0.2.1")
        AccessLog.objects.filter(pk=row.pk).update(attempt_time=now - age)
    sign_in("nobody")
    sign_in("long-ago")
    AccessAttempt.objects.filter(username="long-ago").update(
        attempt_time=now - timedelta(hours=1)
    )
    told = tasks.clear_logins()
    assert told == {
        **{"sessions": 1, "logins": 1, "failures": 1},
        **{"assertions": 0, "sign-ups": 0, "tokens": 0},
    }
    assert Session.objects.get() == kept
    assert set(AccessLog.objects.values_list("username", flat=True)) == {
        "old",
        "student0",
    }
    assert AccessAttempt.objects.get().username == "nobody"
