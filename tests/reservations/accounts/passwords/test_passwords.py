"""A forgotten password by mail, through a real SMTP server, and a changed one."""

import itertools
import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from kombu.exceptions import OperationalError

from reservations.accounts import tasks
from reservations.accounts.api_tokens import create_token
from reservations.accounts.identities.provider_settings import LoginSettings
from reservations.accounts.passwords import password_mail
from reservations.accounts.people import password_link
from reservations.accounts.ssh_keys.service import add_key
from reservations.models import ApiToken, AuditEntry, Invitation, SshKey, User
from tests.factories import PASSWORD, make_user
from tests.reservations.notifications.outside import free_port, smtp

pytestmark = pytest.mark.django_db(transaction=True)
NEW = "a fairly new horse"
KEY = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJdD7y3aLq454yWBdwLWbieU1ebz9/cu7/QEXn9OIeZJ x"
)
callers = itertools.count(1)
CHOSEN = {"new_password1": NEW, "new_password2": NEW}


@pytest.fixture
def ada():
    return make_user("ada", email="Ada@Example.org")


@pytest.fixture(autouse=True)
def in_the_worker(monkeypatch):
    """Run the tasks here. Their queue is Celery's."""
    for task in (tasks.mail_password_link, tasks.mail_password_notice):
        monkeypatch.setattr(task, "delay", task.run)


def ask(address: str, caller: str = ""):
    # Requests from one address are counted in the broker, across tests.
    client = Client(REMOTE_ADDR=caller or f"192.0.2.{next(callers)}")
    return client.post("/login/password/forgotten/", {"email": address})


def links(postman) -> list[str]:
    texts = (mail.get_content() for _to, mail in postman.mails)
    found = (re.search(r"https://gpu\.example\.org(/\S+)", text) for text in texts)
    return [one[1] for one in found if one]


def signs_in(password: str) -> bool:
    answer = Client().post("/login/", {"username": "ada", "password": password})
    return answer.status_code == 302


def test_a_mailed_link_sets_a_password_once_and_signs_out_every_browser(ada, settings):
    browser = Client()
    browser.force_login(ada)
    now = timezone.now()
    # A link knows the second of the last sign-in.
    User.objects.update(last_login=now - timedelta(minutes=1))
    create_token(user=ada, label="x", scopes=["read"], days=9, now=now)
    password_link(user_id=ada.pk, actor=ada, now=now)
    with smtp(settings) as postman:
        # The mail goes to the stored address, whatever was typed.
        assert ask("ada@example.org").url == "/login/password/sent/"
        assert postman.mails[0][0] == ["Ada@example.org"]
        (link,) = links(postman)
        visitor, second = Client(), Client()
        page = visitor.get(link, follow=True)
        form = page.redirect_chain[0][0]
        assert link.split("/")[-2] not in form
        assert "no-store" in page.headers["Cache-Control"]
        weak = visitor.post(
            form, {"new_password1": "short", "new_password2": "shorter"}
        )
        assert weak.status_code == 422
        assert "The two passwords differ." in weak.content.decode()
        assert signs_in(PASSWORD) is True
        # A sign-in ends the link.
        assert visitor.post(form, CHOSEN).status_code == 404
        ask("ada@example.org")
        link = links(postman)[1]
        visitor.get(link)
        second.get(link)
        assert visitor.post(form, CHOSEN).url == "/login/"
        told = postman.mails[-1][1]
        assert "was changed" in told["Subject"]
    assert second.post(form, CHOSEN | {"new_password1": "other"}).status_code == 404
    assert Client().get(link).status_code == 404
    assert (signs_in(PASSWORD), signs_in(NEW)) == (False, True)
    assert browser.get("/me/").status_code == 302
    assert not Invitation.objects.exists()
    assert ApiToken.objects.get().revoked_at is None
    row = AuditEntry.objects.get(verb="password.reset")
    assert (row.actor, row.subject) == (ada, f"user:{ada.pk}")


def test_keys_end_too_if_the_person_asks_for_it(ada, settings):
    now = timezone.now()
    create_token(user=ada, label="x", scopes=["read"], days=9, now=now)
    add_key(user=ada, text=KEY, name="", now=now)
    with smtp(settings) as postman:
        ask(ada.email)
        visitor = Client()
        form = visitor.get(links(postman)[0]).url
        visitor.post(form, CHOSEN | {"end_keys": "on"})
    assert ApiToken.objects.get().revoked_at is not None
    assert not SshKey.objects.exists()
    detail = AuditEntry.objects.get(verb="password.reset").detail
    assert detail == {"tokens_revoked": 1, "ssh_keys_removed": 1}


@pytest.mark.once
def test_every_address_gets_the_same_answer_and_some_no_mail(
    ada, settings, time_machine
):
    make_user("off", email="off@example.org", is_active=False)
    without = make_user("sso", email="sso@example.org")
    without.set_unusable_password()
    without.save()
    # A dotless i is not the i of the stored address.
    addresses = (
        "nobody@x.org",
        "off@example.org",
        "sso@example.org",
        "ada@exampl\u0435.org",
    )
    with smtp(settings) as postman:
        answers = {(ask(one).status_code, ask(one).url) for one in addresses[:3]}
        assert ask(addresses[3]).status_code in (302, 422)
        assert postman.mails == []
        assert answers == {(302, "/login/password/sent/")}
        for _ in range(5):
            ask(ada.email)
        assert len(postman.mails) == 3
        time_machine.move_to(timezone.now() + timedelta(hours=1, minutes=1))
        ask(ada.email)
        assert Client().get(links(postman)[0]).status_code == 404
        assert len(postman.mails) == 4


@pytest.mark.once
def test_a_link_ends_if_the_person_is_switched_off(ada, settings):
    with smtp(settings) as postman:
        ask(ada.email)
        (link,) = links(postman)
    visitor = Client()
    form = visitor.get(link).url
    ada.is_active = False
    ada.save()
    assert visitor.post(form, CHOSEN).status_code == 404
    ada.refresh_from_db()
    assert ada.check_password(PASSWORD)


def test_a_link_is_counted_under_a_lock_of_the_person(ada, settings):
    with smtp(settings), CaptureQueriesContext(connection) as asked:
        assert password_mail.send_links(address=ada.email, now=timezone.now()) == 1
    texts = [one["sql"] for one in asked.captured_queries]
    (count,) = [at for at, text in enumerate(texts) if "COUNT(*)" in text]
    assert any(text.startswith("BEGIN") for text in texts[:count])
    if connection.features.has_select_for_update:
        assert any("FOR NO KEY UPDATE" in text for text in texts[:count])


def test_without_the_broker_the_page_says_that_no_mail_was_sent(
    ada, settings, monkeypatch
):
    def away(_address):
        raise OperationalError

    monkeypatch.setattr(tasks.mail_password_link, "delay", away)
    settings.MAIL_CONFIGURED, settings.PORTAL_URL = True, "https://gpu.example.org"
    answer = ask(ada.email)
    assert answer.status_code == 503
    assert "No mail was sent. Try again in a moment." in answer.content.decode()


@pytest.mark.once
def test_requests_from_one_address_are_limited(settings, redis_client, time_machine):
    settings.MAIL_CONFIGURED, settings.PORTAL_URL = True, "https://gpu.example.org"
    time_machine.move_to(timezone.now(), tick=False)
    answers = [
        ask(f"n{number}@x.org", "198.51.100.1").status_code for number in range(12)
    ]
    assert answers == [302] * 10 + [429] * 2


def test_a_mail_server_that_is_away_changes_no_answer(ada, settings):
    with smtp(settings) as postman:
        settings.EMAIL_PORT = free_port()
        assert ask(ada.email).status_code == 302
        assert postman.mails == []
    row = AuditEntry.objects.get(verb="password.mail-failed")
    assert row.subject == f"user:{ada.pk}"


@pytest.mark.once
@pytest.mark.parametrize("address", ["", "nothing", "a\0@x.org", "x" * 9000])
def test_an_invalid_address_is_refused_by_the_field(address, settings):
    settings.MAIL_CONFIGURED, settings.PORTAL_URL = True, "https://gpu.example.org"
    answer = ask(address)
    assert answer.status_code == 422
    assert 'aria-invalid="true"' in answer.content.decode()


def test_sites_without_mail_or_passwords_say_what_to_do(settings):
    settings.MAIL_CONFIGURED = False
    assert "This portal sends no mail." in ask("ada@example.org").content.decode()
    settings.LOGIN_SETTINGS = LoginSettings(("oidc",), (), ())
    assert "This portal has no passwords." in ask("ada@example.org").content.decode()
    assert AuditEntry.objects.count() == 0


@pytest.mark.once
@pytest.mark.parametrize(
    "address",
    ["/login/password/MQ/set-password/", f"/login/password/{'9' * 900}/x/"]
    + [
        f"/login/password/{uid}/c-d/"
        for uid in ("AA", "OTk5OTk5OTk5OTk5OTk5OTk5OTk5OQ")
    ],
)
def test_an_invented_link_begins_no_session(address):
    answer = Client().get(address)
    assert answer.status_code == 404
    assert "sessionid" not in answer.cookies


# --- change -----------------------------------------------------------------------


def change(client: Client, **fields: str):
    return client.post("/me/password/", {"old_password": PASSWORD, **CHOSEN, **fields})


@pytest.mark.once
def test_a_changed_password_keeps_this_browser_and_signs_out_others(ada):
    here, there = Client(), Client()
    for browser in (here, there):
        browser.force_login(ada)
    assert '/me/password/"' in here.get("/me/").content.decode()
    assert change(here).url == "/me/"
    assert here.get("/me/").status_code == 200
    assert there.get("/me/").status_code == 302
    assert signs_in(NEW)
    assert AuditEntry.objects.get().verb == "password.changed"


@pytest.mark.once
def test_faults_stand_by_the_fields_and_guesses_are_limited(
    ada, redis_client, time_machine
):
    here = Client()
    here.force_login(ada)
    time_machine.move_to(timezone.now(), tick=False)
    wrong = change(here, old_password="guess")
    assert wrong.status_code == 422
    assert "This is not your current password." in wrong.content.decode()
    weak = change(here, new_password1="12345", new_password2="12345")
    assert weak.status_code == 422
    answers = [change(here, old_password="guess").status_code for _ in range(4)]
    assert answers == [422] * 3 + [429]
    assert signs_in(PASSWORD)


@pytest.mark.once
def test_a_person_without_a_password_is_told_so(ada):
    ada.set_unusable_password()
    ada.save()
    here = Client()
    here.force_login(ada)
    assert "You have no password at this portal" in change(here).content.decode()
    assert "/me/password/" not in here.get("/me/").content.decode()
    assert here.get("/admin/password_change/").status_code == 302


def test_without_the_broker_a_password_is_changed_without_a_mail(ada, monkeypatch):
    def away(_pk):
        raise OperationalError

    monkeypatch.setattr(tasks.mail_password_notice, "delay", away)
    here = Client()
    here.force_login(ada)
    assert change(here).url == "/me/"
