"""The operator's pages of services, the checks of settings, and the doctor."""

import re
from dataclasses import replace

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError
from django.test import Client
from django.utils import timezone

from gpuportal.checks import services_find_the_provider
from gpuportal.doctor.portal_diagnosis import OpenidState, portal_report
from gpuportal.doctor.portal_facts import _openid
from gpuportal.manage.audit_text import rows_of
from gpuportal.openid_provider import signing_key
from reservations.accounts.second_factors import service as second_factors
from reservations.accounts.second_factors.rules import totp
from reservations.models import ApiToken, AuditEntry, OpenidClient
from telemetry import paths
from tests.factories import make_user
from tests.gpuportal.doctor.test_diagnosis import PORTAL
from tests.gpuportal.openid_provider.relying_party import (
    ISSUER,
    Service,
    browser_of,
    on,
    text,
)

LIST = "/manage/services/"
GRAFANA = {
    "name": "Grafana <b>",
    "redirect_uris": "https://g.example/cb\nhttp://localhost/cb",
    "scopes": ["profile", "groups"],
}


@pytest.fixture
def omar(settings, db):
    on(settings)
    return make_user("omar", is_superuser=True, is_staff=True)


def secret_in(page: str) -> str | None:
    found = re.search(r'id="fresh-secret" readonly value="([^"]+)"', page)
    return found and found[1]


def test_a_service_from_registration_to_deletion(omar):
    browser = browser_of(omar)
    made = text(browser.post(LIST, GRAFANA))
    secret = secret_in(made)
    row = OpenidClient.objects.get()
    assert row.secret_hash == ApiToken.hash_token(secret or "")
    assert (row.scopes, row.made_by) == (["openid", "profile", "groups"], omar)
    assert row.client_id in made and ISSUER in made
    here = f"{LIST}{row.pk}/"
    shown = text(browser.get(here))
    assert secret and secret not in shown and "Grafana &lt;b&gt;" in shown
    # Another secret, and the first one is over.
    new = secret_in(text(browser.post(here, {"act": "rotate"})))
    row.refresh_from_db()
    assert new and row.secret_hash == ApiToken.hash_token(new) != secret
    browser.post(here, GRAFANA | {"name": "Graphs", "scopes": ["email"]})
    browser.post(here, GRAFANA | {"name": "Graphs", "scopes": ["email"]})
    row.refresh_from_db()
    assert (row.name, row.scopes) == ("Graphs", ["openid", "email"])
    browser.post(here, {"act": "off"})
    assert not OpenidClient.objects.get().enabled
    browser.post(here, {"act": "on"})
    assert OpenidClient.objects.get().enabled
    wrong = browser.post(here, {"act": "delete", "typed": "graphs"})
    assert (wrong.status_code, OpenidClient.objects.count()) == (422, 1)
    assert "Type “Graphs” to confirm." in text(wrong)
    browser.post(here, {"act": "delete", "typed": "Graphs"})
    assert not OpenidClient.objects.exists()
    assert browser.get(here).status_code == 404
    assert browser.post(here, {"act": "rotate"}).status_code == 404
    log = rows_of(AuditEntry.objects.order_by("pk"))
    assert [(row.actor, row.entry.verb) for row in log] == [
        ("Omar", f"openid.{what}")
        for what in (
            *("client-made", "secret-replaced", "client-changed"),
            *("client-off", "client-on", "client-deleted"),
        )
    ]
    assert log[0].sentence == f"registered service {row.pk}"
    assert not [one for one in log if secret in str(one.entry.detail)]


@pytest.mark.once
def test_what_is_typed_wrong_is_said_by_the_field(omar):
    browser = browser_of(omar)
    bad = GRAFANA | {"redirect_uris": "http://g.example/cb", "scopes": ["root"]}
    answer = browser.post(LIST, bad | {"name": ""})
    assert answer.status_code == 422 and not OpenidClient.objects.exists()
    errors = answer.context["form"].errors
    assert set(errors) == {"name", "redirect_uris", "scopes"}
    assert "http://g.example/cb" in text(answer) and "not encrypted" in text(answer)
    made = text(browser.post(LIST, GRAFANA | {"public": "on"}))
    assert "It has no secret" in made and secret_in(made) is None
    here = f"{LIST}{OpenidClient.objects.get().pk}/"
    assert browser.post(here, {"act": "rotate"}).status_code == 404
    assert browser.post(here, bad).status_code == 422
    twice = browser.post(LIST, GRAFANA | {"name": "GRAFANA <b>"})
    assert twice.context["form"].errors == {"name": ["Another service has this name."]}
    assert browser.post(here, GRAFANA).status_code == 302


@pytest.mark.once
def test_only_an_admin_with_the_second_factor_changes_services(omar, settings):
    service = Service(omar)
    here = f"{LIST}{service.row.pk}/"
    for user in (make_user("ada"), None):
        other = browser_of(user) if user else Client()
        for path in (LIST, here):
            assert other.get(path).status_code in (302, 403)
            assert other.post(path, {"act": "off"}).status_code in (302, 403)
    now = timezone.now()
    secret = b"12345678901234567890"
    code = totp(secret).generate(int(now.timestamp())).decode()
    second_factors.add_app(user=omar, secret=secret, code=code, name="app", now=now)
    browser = browser_of(omar)
    assert browser.post(LIST, GRAFANA).status_code == 403
    for act in ("rotate", "save", "delete", "on"):
        answer = browser.post(here, GRAFANA | {"act": act, "typed": "Grafana"})
        assert answer.status_code == 403 and secret_in(text(answer)) is None
        assert "Confirm your second factor" in text(answer)
    assert service.fresh().name == "Grafana" and OpenidClient.objects.count() == 1
    # That is urgent.
    assert browser.post(here, {"act": "off"}).status_code == 302
    assert not service.fresh().enabled
    settings.OPENID_PROVIDER = False
    for path in (LIST, here):
        assert browser.get(path).status_code == 404


@pytest.mark.parametrize(
    ("url", "production", "well"),
    [
        ("https://gpu.example.org", True, True),
        ("https://gpu.example.org:8443", True, True),
        ("http://127.0.0.1:8010", False, True),
        ("http://127.0.0.1:8010", True, False),
        ("http://gpu.example.org", False, False),
        ("https://gpu.example.org/portal", True, False),
        ("https://gpu.example.org?x", True, False),
        ("https://[", True, False),
        ("", False, False),
    ],
)
def test_the_provider_needs_an_address(settings, url, production, well):
    on(settings, url)
    settings.PRODUCTION = production
    found = services_find_the_provider()
    assert [one.id for one in found] == ([] if well else ["gpuportal.E010"])
    settings.OPENID_PROVIDER = False
    assert services_find_the_provider() == []


def line_of(state: OpenidState | None) -> tuple[str, str]:
    report = portal_report(replace(PORTAL, openid=state))
    found = next(one for one in report if one.check == "sign-in to services")
    return found.state, found.fact


def test_the_doctor_says_what_is_wrong_with_the_provider():
    assert line_of(None) == ("note", "off (OPENID_PROVIDER)")
    assert line_of(OpenidState(fault="x holds no RSA key", services=1)) == (
        *("problem", "x holds no RSA key"),
    )
    assert line_of(OpenidState(fault="", services=0))[0] == "note"
    assert line_of(OpenidState(fault="", services=2))[0] == "ok"


@pytest.mark.once
def test_a_key_that_cannot_sign_is_a_problem_and_no_crash(omar, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUPORTAL_VAR", str(tmp_path))
    # Five keys are made here, and long ones take seconds.
    assert signing_key.BITS == 3072
    monkeypatch.setattr(signing_key, "BITS", 2048)
    Service(omar)
    assert _openid(migrated=True) == OpenidState(fault="", services=1)
    path = paths.secret_file(signing_key.CURRENT)
    assert path.stat().st_mode & 0o777 == 0o600
    public = signing_key.signing_key().as_pem(private=False).decode()
    for broken in ("no key", public):
        path.write_text(broken)
        found = _openid(migrated=True)
        assert found and str(path) in found.fault
        with pytest.raises(CommandError, match="RSA key"):
            call_command("openid_key", "--rotate")
    path.unlink()
    call_command("openid_key", "--rotate")
    replaced = AuditEntry.objects.filter(verb="openid.key-replaced")
    assert replaced.count() == 1
    kept = signing_key.public_keys()
    assert len(kept) == 2
    with pytest.raises(CommandError, match="within the last hour"):
        call_command("openid_key", "--rotate")
    assert signing_key.public_keys() == kept and replaced.count() == 1

    # What cannot be logged is not done.
    def no_log(**_values):
        raise DatabaseError

    with monkeypatch.context() as patch, pytest.raises(DatabaseError):
        patch.setattr(signing_key, "audit_act", no_log)
        call_command("openid_key", "--rotate", "--force")
    assert signing_key.public_keys() == kept
    call_command("openid_key", "--rotate", "--force")
    assert replaced.count() == 2 and signing_key.public_keys()[1] == kept[0]
