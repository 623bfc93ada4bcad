"""Signing in with a second factor, confirming it again, and losing it."""

import base64
import re
from dataclasses import replace
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone

from reservations.accounts import tasks
from reservations.accounts.second_factors import service
from reservations.accounts.second_factors.rules import (
    LOCKED,
    MOST_WRONG,
    FactorPolicy,
    totp,
)
from reservations.accounts.second_factors.sealed_text import seal, unseal
from reservations.models import (
    ApiToken,
    AuditEntry,
    Invitation,
    RecoveryCode,
    SecondFactor,
    SshKey,
    User,
)
from tests.factories import PASSWORD, make_user
from tests.reservations.accounts.passwords.test_passwords import KEY

pytestmark = pytest.mark.django_db(transaction=True)
PROVE, FACTORS = "/second-factor/", "/me/second-factor/"
TOKEN = {"label": "x", "scopes": ["read"], "days": "30"}
SECRET = b"12345678901234567890"


@pytest.fixture(autouse=True)
def clock(time_machine):
    """A clock that the tests move. So a code is never one of the next step."""
    time_machine.move_to("2026-11-28T12:00:05Z", tick=False)
    return time_machine


@pytest.fixture
def ada():
    user = make_user("ada")
    now = timezone.now() - timedelta(minutes=10)
    service.add_app(user=user, secret=SECRET, code=code_at(now), name="phone", now=now)
    return user


def code_at(now, secret=SECRET) -> str:
    return totp(secret).generate(int(now.timestamp())).decode()


def code(secret=SECRET) -> str:
    return code_at(timezone.now(), secret)


def password(client: Client, name="ada", **query):
    return client.post("/login/", {"username": name, "password": PASSWORD, **query})


def is_in(client: Client) -> bool:
    return client.get("/me/").status_code == 200


@pytest.mark.once
def test_nobody_is_signed_in_before_the_second_factor(ada):
    here = Client()
    assert password(here, next="/standing/").url == PROVE
    assert not is_in(here)
    assert here.get("/api/v1/ssh-keys").status_code == 401
    page = here.get(PROVE)
    assert "no-store" in page.headers["Cache-Control"]
    wrong = here.post(PROVE, {"code": "000000"})
    assert (wrong.status_code, is_in(here)) == (422, False)
    assert "This code is wrong" in wrong.content.decode()
    used = code()
    answer = here.post(PROVE, {"code": f"{used[:3]} {used[3:]}"}, follow=True)
    assert [url for url, _status in answer.redirect_chain] == [
        "/login/?next=/standing/",
        "/standing/",
    ]
    assert is_in(here)
    # Nobody else can use the code that was just typed.
    other = Client()
    password(other)
    assert other.post(PROVE, {"code": used}).status_code == 422
    assert not is_in(other)


@pytest.mark.once
def test_the_pending_sign_in_ends_with_time_password_and_account(ada, clock):
    late = Client()
    password(late)
    clock.shift(timedelta(minutes=10, seconds=1))
    assert late.post(PROVE, {"code": code()}).url == "/login/"
    changed, off = Client(), Client()
    password(changed)
    password(off)
    ada.set_password("another one entirely")
    ada.save()
    assert changed.post(PROVE, {"code": code()}).url == "/login/"
    User.objects.update(is_active=False)
    assert off.post(PROVE, {"code": code()}).url == "/login/"
    assert Client().get(PROVE).url == "/login/"
    assert not any(map(is_in, (late, changed, off)))


def test_wrong_codes_lock_the_app_but_no_recovery_code(ada, clock, redis_client):
    (recovery, *_rest) = service.make_recovery_codes(user=ada, now=timezone.now())
    here = Client()
    password(here)
    for _ in range(MOST_WRONG):
        here.post(PROVE, {"code": "000000"})
    refused = here.post(PROVE, {"code": code()})
    assert "Too many wrong codes" in refused.content.decode()
    assert AuditEntry.objects.filter(verb="second-factor.locked").count() == 1
    answer = here.post(PROVE, {"code": recovery.upper()}, follow=True)
    assert "9 are left" in answer.content.decode()
    again = Client()
    password(again)
    assert again.post(PROVE, {"code": recovery}).status_code == 422
    clock.shift(LOCKED)
    password(again)
    assert again.post(PROVE, {"code": code()}).status_code == 302


@pytest.mark.once
def test_no_other_door_leads_around_it(ada):
    ada.is_superuser = ada.is_staff = True
    ada.save()
    here = Client()
    door = here.post("/admin/login/", {"username": "ada", "password": PASSWORD})
    assert (door.status_code, is_in(here)) == (302, False)
    assert here.get("/admin/login/?next=/admin/").url == "/login/?next=/admin/"
    student = Client()
    student.force_login(make_user("bo"))
    assert student.get("/admin/", follow=True).status_code == 403


@pytest.mark.once
def test_a_token_and_a_key_need_it_again_after_ten_minutes(ada, clock):
    here = Client()
    password(here)
    here.post(PROVE, {"code": code()})
    assert here.post("/me/tokens/", TOKEN).status_code == 200
    clock.shift(timedelta(minutes=10, seconds=1))
    assert "Confirm your second factor first" in here.get("/me/").content.decode()
    key = {"public_key": KEY, "name": ""}
    for path, sent in (("/me/tokens/", TOKEN), ("/me/ssh-keys/", key), (FACTORS, {})):
        assert here.post(path, sent).url.startswith(PROVE), path
    by_script = here.post("/api/v1/ssh-keys", key, content_type="application/json")
    assert by_script.json()["code"] == "second-factor-needed"
    assert (ApiToken.objects.count(), SshKey.objects.count()) == (1, 0)
    assert here.post(f"{PROVE}?next=/me/", {"code": code()}).url == "/login/?next=/me/"
    assert here.post("/me/ssh-keys/", key).status_code == 302
    assert SshKey.objects.count() == 1
    # Somebody without one is asked for nothing.
    plain = Client()
    plain.force_login(make_user("bo"))
    assert plain.post("/me/tokens/", TOKEN).status_code == 200
    assert plain.get(PROVE).url == "/login/"


# --- set up -----------------------------------------------------------------------


def shown_secret(page: str) -> bytes:
    text = re.search(r'<code class="command">([A-Z2-7 ]+)</code>', page)[1]
    return base64.b32decode(text.replace(" ", ""))


def test_an_app_is_set_up_with_its_first_code_and_the_password():
    bo = make_user("bo")
    here, there = Client(), Client()
    for client in (here, there):
        client.force_login(bo)
    page = here.post(FACTORS, {"act": "app"}).content.decode()
    secret = shown_secret(page)
    assert 'src="data:image/svg+xml' in page
    good = {"act": "app-add", "name": "", "code": code(secret), "password": PASSWORD}
    for change, words in (
        ({"password": "guess"}, "not your current password"),
        ({"code": "000000"}, "not the code of the app"),
        ({"code": ""}, "Fill this in."),
        ({"name": "x" * 61}, "Use 60 characters at most"),
    ):
        answer = here.post(FACTORS, good | change)
        assert answer.status_code == 422
        assert words in answer.content.decode(), words
    assert not SecondFactor.objects.exists()
    done = here.post(FACTORS, good).content.decode()
    codes = re.findall(r"(?:[a-z2-7]{4}-){3}[a-z2-7]{4}", done)
    assert len(codes) == RecoveryCode.objects.count() == 10
    factor = SecondFactor.objects.get()
    assert unseal(factor.secret) == secret
    assert base64.b32encode(secret).decode() not in factor.secret
    # Codes are shown once, and a browser that was open without it is signed out.
    assert codes[0] not in here.get(FACTORS).content.decode()
    assert (is_in(here), is_in(there)) == (True, False)
    # A second app would make the first one's codes wrong.
    here.post(FACTORS, {"act": "app"})
    assert here.post(FACTORS, good).status_code == 422
    new = here.post(FACTORS, {"act": "codes"}).content.decode()
    assert codes[0] not in new
    assert here.post(FACTORS, {"act": "remove", "factor": "999"}).status_code == 404
    assert here.post(FACTORS, {"act": "remove", "factor": factor.pk}).status_code == 302
    assert not RecoveryCode.objects.exists()
    assert password(Client(), "bo").url == "/mine/"


def test_a_secret_of_another_secret_key_is_no_crash(ada, settings):
    settings.SECRET_KEY = "another one, after a restore without secrets"
    with pytest.raises(service.ProofRefused, match="secret key was changed"):
        service.check_code(user=ada, code=code(), now=timezone.now())
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    assert unseal(seal(b"x")) == b"x"


# --- operators --------------------------------------------------------------------


@pytest.fixture
def omar_in(settings):
    settings.LOGIN_SETTINGS = replace(
        settings.LOGIN_SETTINGS, second_factor=FactorPolicy("required")
    )
    client = Client()
    client.force_login(make_user("omar", is_superuser=True, is_staff=True))
    return client


def test_operators_are_asked_and_after_the_grace_led_to_the_page(omar_in, clock):
    page = omar_in.get("/manage/").content.decode()
    assert 'id="second-factor-banner"' in page
    clock.shift(timedelta(days=13, hours=23))
    assert omar_in.get("/manage/").status_code == 200
    clock.shift(timedelta(hours=2))
    omar_in.force_login(User.objects.get())
    assert omar_in.get("/manage/").url == FACTORS
    assert omar_in.get("/admin/").url == FACTORS
    answer = omar_in.get("/api/v1/ssh-keys")
    assert (answer.status_code, answer.json()["code"]) == (403, "second-factor-needed")
    assert "your time without one is over" in omar_in.get(FACTORS).content.decode()
    secret = shown_secret(omar_in.post(FACTORS, {"act": "app"}).content.decode())
    sent = {"act": "app-add", "code": code(secret), "password": PASSWORD}
    assert omar_in.post(FACTORS, sent).status_code == 200
    assert omar_in.get("/manage/").status_code == 200


def test_a_lost_factor_is_removed_by_an_operator_or_a_command(ada, omar_in, capsys):
    victim = Client()
    victim.force_login(ada)
    address = f"/manage/people/{ada.pk}/"
    assert "phone" in omar_in.get(address).content.decode()
    assert omar_in.post(address, {"act": "factors"}).url == address
    assert not SecondFactor.objects.exists()
    assert not is_in(victim)
    row = AuditEntry.objects.get(verb="second-factor.reset")
    assert (row.actor.username, row.subject) == ("omar", f"user:{ada.pk}")
    now = timezone.now()
    service.add_app(user=ada, secret=SECRET, code=code(), name="phone", now=now)
    call_command("reset_second_factor", "ada")
    assert capsys.readouterr().out == "Removed 1 second factors of ada.\n"
    assert password(Client()).url == "/mine/"
    with pytest.raises(CommandError):
        call_command("reset_second_factor", "nobody")


@pytest.fixture
def omar_with_factor(omar_in):
    """An operator with an app, signed in without a fresh proof."""
    omar, now = User.objects.get(username="omar"), timezone.now()
    before = now - timedelta(minutes=10)
    service.add_app(
        user=omar, secret=SECRET, code=code_at(before), name="key", now=before
    )
    return omar_in


def test_an_operator_confirms_a_factor_before_any_change_of_a_person(
    ada, omar_with_factor
):
    here, address = omar_with_factor, f"/manage/people/{ada.pk}/"
    link = f"{PROVE}?next={address}"
    assert link in here.get(address).content.decode()
    typed = {"display_name": "Typed", "email": "x@evil.example", "is_superuser": "on"}
    save = {"act": "save", "is_active": "on", "unix_user": "", **typed}
    acts = [{"act": act} for act in ("link", "mail", "factors", "disconnect", "?")]
    before = User.objects.values().get(pk=ada.pk)
    for sent in (save, *acts):
        refused = here.post(address, sent)
        assert refused.status_code == 403, sent
        assert f'{link}" target="_blank"' in refused.content.decode()
    assert User.objects.values().get(pk=ada.pk) == before
    assert SecondFactor.objects.filter(user=ada).exists()
    assert not Invitation.objects.exists()
    # The form keeps what was typed.
    assert 'value="x@evil.example"' in here.post(address, save).content.decode()
    new = {"username": "eve", "email": "", "unix_user": "", "display_name": "Eve"}
    refused = here.post("/manage/people/new/", new)
    assert refused.status_code == 403
    assert 'value="eve"' in refused.content.decode()
    assert not User.objects.filter(username="eve").exists()
    # The end of sessions is urgent.
    assert here.post(address, {"act": "sign-out"}).status_code == 302
    here.post(f"{PROVE}?next={address}", {"code": code()})
    assert here.post(address, save | {"is_superuser": ""}).status_code == 302
    assert here.post("/manage/people/new/", new).status_code == 302


@pytest.mark.once
def test_the_admin_pages_of_people_need_the_factor_too(ada, omar_with_factor):
    here, pages = omar_with_factor, "/admin/reservations/user/"
    own = f"{pages}{ada.pk}/"
    for page in (f"{own}change/", f"{pages}add/"):
        assert here.get(page).url == f"{PROVE}?next={page}"
    for page in (f"{own}change/", f"{pages}add/", f"{own}password/"):
        assert here.post(page, {"username": "eve"}).status_code == 403
    assert here.get(pages).status_code == 200
    here.post(PROVE, {"code": code()})
    assert here.get(f"{own}change/").status_code == 200
    assert here.get(f"{pages}add/").status_code == 200


@pytest.fixture
def in_the_worker(monkeypatch):
    for task in (tasks.mail_lock_notice, tasks.mail_address_notice):
        monkeypatch.setattr(task, "delay", task.run)


def test_a_changed_address_is_told_to_the_previous_one(
    ada, settings, mailoutbox, in_the_worker, client
):
    settings.MAIL_CONFIGURED = True
    User.objects.filter(pk=ada.pk).update(email="ada@example.org")
    client.force_login(make_user("omar", is_superuser=True, is_staff=True))
    sent = {"display_name": "Ada", "unix_user": "", "is_active": "on"}
    address = f"/manage/people/{ada.pk}/"
    for email in ("new@example.org", "new@example.org"):
        assert client.post(address, {**sent, "email": email}).status_code == 302
    (mail,) = mailoutbox
    assert (mail.to, "was changed" in mail.subject) == (["ada@example.org"], True)
    assert "new@example.org" not in mail.body
    page = f"/admin/reservations/user/{ada.pk}/change/"
    form = client.get(page).context["adminform"].form
    values = {
        name: form[name].value()
        for name in ("username", "display_name", "unix_user", "hue", "is_active")
    }
    joined = timezone.localtime(ada.date_joined)
    values |= {
        "email": "third@example.org",
        "date_joined_0": f"{joined:%Y-%m-%d}",
        "date_joined_1": f"{joined:%H:%M:%S}",
    }
    answer = client.post(page, values)
    assert answer.status_code == 302, answer.context["adminform"].form.errors
    assert [one.to for one in mailoutbox[1:]] == [["new@example.org"]]


def test_a_locked_app_is_told_by_mail_once(
    ada, settings, mailoutbox, in_the_worker, redis_client
):
    settings.MAIL_CONFIGURED = True
    User.objects.update(email="ada@example.org")
    here = Client()
    password(here)
    for _ in range(MOST_WRONG + 2):
        here.post(PROVE, {"code": "000000"})
    (mail,) = mailoutbox
    assert "locked for 15 minutes" in mail.body


@pytest.mark.once
def test_tries_are_counted_for_each_address(ada, redis_client):
    here, there = Client(REMOTE_ADDR="192.0.2.1"), Client(REMOTE_ADDR="192.0.2.2")
    for client in (here, there):
        password(client)
    answers = [here.post(PROVE, {"passkey": "{}"}).status_code for _ in range(21)]
    assert answers == [422] * 20 + [429]
    assert there.post(PROVE, {"code": code()}).status_code == 302


@pytest.mark.once
def test_the_secret_of_a_new_app_is_dropped_after_ten_minutes(clock):
    here = Client()
    here.force_login(make_user("bo"))
    secret = shown_secret(here.post(FACTORS, {"act": "app"}).content.decode())
    clock.shift(timedelta(minutes=10))
    assert shown_secret(here.get(FACTORS).content.decode()) == secret
    clock.shift(timedelta(seconds=1))
    assert "app_secret" not in here.get(FACTORS).context
    sent = {"act": "app-add", "code": code(secret), "password": PASSWORD}
    assert "too old" in here.post(FACTORS, sent).content.decode()
    assert not SecondFactor.objects.exists()


@pytest.mark.once
def test_the_first_factor_without_a_password_needs_a_late_sign_in(clock):
    bo, here = make_user("bo"), Client()
    bo.set_unusable_password()
    bo.save()
    here.force_login(bo)
    clock.shift(timedelta(minutes=10, seconds=1))
    secret = shown_secret(here.post(FACTORS, {"act": "app"}).content.decode())
    refused = here.post(FACTORS, {"act": "app-add", "code": code(secret)})
    assert refused.status_code == 422
    assert "Sign out and sign in again first." in refused.content.decode()
    assert not SecondFactor.objects.exists()
    here.force_login(bo)
    secret = shown_secret(here.post(FACTORS, {"act": "app"}).content.decode())
    done = here.post(FACTORS, {"act": "app-add", "code": code(secret)})
    assert done.status_code == 200
    assert SecondFactor.objects.get().user == bo
