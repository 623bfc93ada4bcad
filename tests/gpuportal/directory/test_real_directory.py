"""A real OpenLDAP server: who gets in, who does not, and what a sign-in changes."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import ldap
import pytest
from axes.models import AccessAttempt
from django.core.management import call_command
from django.test import Client
from django.utils import timezone

from gpuportal.directory import directory_client, directory_process
from gpuportal.directory.directory_client import (
    DirectoryAnswerInvalid,
    DirectoryAway,
    claims_of_login,
)
from reservations.accounts.identities.provider_settings import LoginSettings
from reservations.models import (
    AuditEntry,
    ClaimMapping,
    Identity,
    Membership,
    SecondFactor,
    User,
)
from reservations.store.unix_logins import unix_uid
from tests.factories import PASSWORD as LOCAL_PASSWORD
from tests.factories import make_account, make_user
from tests.gpuportal.directory.slapd_site import (
    GROUPS,
    PASSWORD,
    PEOPLE,
    SERVICE,
    person,
    slapd_site,
)

pytestmark = pytest.mark.django_db
BACKEND = "gpuportal.directory.directory_backend.DirectoryBackend"
DIRECT = {"bind_dn": "", "bind_password": "", "user_dn": f"uid={{user}},{PEOPLE}"}


@pytest.fixture(scope="module")
def slapd(tmp_path_factory):
    with slapd_site(tmp_path_factory.mktemp("slapd")) as site:
        yield site


@pytest.fixture
def site(slapd, settings):
    use(settings, slapd.directory())
    return slapd


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(directory_client._Seen, "failure", None)


def use(settings, directory, *, passwords: bool = True) -> None:
    methods = ("password", "ldap") if passwords else ("ldap",)
    settings.LOGIN_SETTINGS = LoginSettings(methods, (), (), directory=directory)
    backends = [one for one in settings.AUTHENTICATION_BACKENDS if one != BACKEND]
    settings.AUTHENTICATION_BACKENDS = [*backends, BACKEND]


def sign_in(user: str = "mia", password: str = PASSWORD, client: Client | None = None):
    sent = {"username": user, "password": password}
    return (client or Client()).post("/login/", sent)


def is_in(client: Client) -> bool:
    return client.get("/me/").status_code == 200


def verbs() -> list[str]:
    return list(AuditEntry.objects.order_by("pk").values_list("verb", flat=True))


# --- what goes to the directory ---------------------------------------------------


def asked(directory, user: str, password: str = PASSWORD, act: str = "person") -> dict:
    """Ask as the program does, without starting it."""
    found: list[dict] = []

    def run(_command, *, input, **_more):
        answer = directory_process.answer_of(json.loads(input))
        found.append(answer)
        return type("Done", (), {"stdout": json.dumps(answer).encode()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory_client.subprocess, "run", run)
        directory_client._call(directory, act=act, user=user, password=password)
    return {key: value for key, value in found[0].items() if key != "url"}


HOSTILE = {
    "star": "*",
    "star inside": "m*a",
    "all people": "*)(uid=*",
    "or": "mia)(|(uid=*",
    "closed": "mia))(|(uid=*)",
    "hidden by NUL": "mia\0",
    "NUL inside": "m\0ia",
    "escaped star": "\\2a",
    "escaped letter": "\\6dia",
    "DN": f"mia,{PEOPLE}",
    "DN of another": "x,uid=mia",
    "two values": "tom+cn=mia",
    "place": "{user}",
    "place of groups": "{dn}",
    "no accent": "zoe",
    "decomposed": "zoe\u0308",
    "wide letters": "\uff4d\uff49\uff41",
    "soft hyphen": "m\u00adia",
    "joiner": "mia\u200d",
    "variation": "mia\ufe0f",
    "spaces": " mia",
    "nobody": "nobody",
    "long": "m" * 150,
}


@pytest.mark.once
@pytest.mark.parametrize("user", HOSTILE.values(), ids=HOSTILE)
def test_no_user_name_finds_a_person_by_another_name(slapd, user):
    searched = slapd.directory(filter="(|(uid={user})(mail={user}))")
    for directory in (searched, slapd.directory(**DIRECT)):
        assert asked(directory, user) == {"state": "wrong"}, directory


@pytest.mark.once
def test_the_names_that_are_meant_find_a_person(slapd):
    directory = slapd.directory(filter="(|(uid={user})(mail={user}))")
    for user in ("mia", "MIA", "mia@example.org", "zoë", "ZOË"):
        assert asked(directory, user)["state"] == "person"
    assert asked(slapd.directory(**DIRECT), "Tom")["username"] == ["tom"]
    # Nothing shows what the directory takes for the same letters.
    assert asked(slapd.directory(**DIRECT), "zoë") == {"state": "wrong"}


@pytest.mark.once
@pytest.mark.parametrize("password", ["", "\0", "\0correct horse", "correct horse\0"])
@pytest.mark.parametrize("more", [{}, DIRECT], ids=["searched", "direct"])
def test_a_bind_without_a_password_is_never_sent(slapd, password, more):
    """This server would answer it with success, as RFC 4513 has it."""
    assert asked(slapd.directory(**more), "mia", password) == {"state": "wrong"}
    assert claims_of_login(slapd.directory(), user="mia", password=password) is None


@pytest.mark.once
def test_the_server_of_these_tests_binds_anybody_without_a_password(slapd):
    connection = ldap.initialize(slapd.plain_url)
    connection.simple_bind_s(f"uid=mia,{PEOPLE}", "")
    assert connection.whoami_s() == ""


@pytest.mark.once
def test_two_entries_with_one_name_are_nobody(slapd):
    directory = slapd.directory(filter="(mail={user})")
    with pytest.raises(DirectoryAnswerInvalid, match="several entries"):
        asked(directory, "both@example.org")


@pytest.mark.once
def test_only_groups_below_the_base_count(slapd):
    by_attribute = asked(slapd.directory(), "mia")["groups"]
    searched = slapd.directory(group_filter="(member={dn})")
    assert sorted(by_attribute) == ["cn=deep,ou=vision", "gpu"]
    assert sorted(asked(searched, "mia")["groups"]) == sorted(by_attribute)
    assert asked(slapd.directory(), "zoë")["groups"] == []
    assert asked(slapd.directory(group_base=""), "mia")["groups"] is None
    with pytest.raises(DirectoryAnswerInvalid, match="no entry ou=nowhere"):
        asked(replace(searched, group_base="ou=nowhere,dc=example,dc=org"), "mia")


# --- TLS --------------------------------------------------------------------------


@pytest.mark.once
def test_a_certificate_is_always_verified(slapd):
    """By this site's authority only, and for the name in the address."""
    start_tls = {"urls": (slapd.plain_url,), "tls": "starttls"}
    other_name = {"urls": (f"ldaps://127.0.0.2:{slapd.tls_port}",)}
    other_start = start_tls | {"urls": (f"ldap://127.0.0.2:{slapd.port}",)}
    assert asked(slapd.directory(**start_tls), "mia")["state"] == "person"
    for more, why in (
        ({"ca_file": ""}, "self-signed"),
        (start_tls | {"ca_file": ""}, "self-signed"),
        (other_name, "not valid for '127.0.0.2'"),
        (other_start, "not valid for '127.0.0.2'"),
        ({"urls": (f"ldaps://127.0.0.1:{slapd.port}",)}, "TLS connection"),
        ({"urls": ("ldaps://127.0.0.1:1",)}, "Can't contact"),
    ):
        with pytest.raises(DirectoryAway):
            asked(slapd.directory(**more), "mia")
        with pytest.raises(DirectoryAway, match=why):
            asked(slapd.directory(**more), "mia", act="look")
    second = ("ldaps://127.0.0.1:1", *slapd.directory().urls)
    assert asked(slapd.directory(urls=second), "mia")["state"] == "person"


@pytest.mark.once
def test_no_variable_switches_the_check_off(slapd, monkeypatch, tmp_path):
    (tmp_path / "ldaprc").write_text("TLS_REQCERT never\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LDAPTLS_REQCERT", "never")
    monkeypatch.setenv("LDAPTLS_CACERT", str(slapd.folder / "ca.pem"))
    with pytest.raises(DirectoryAway):
        claims_of_login(slapd.directory(ca_file=""), user="mia", password=PASSWORD)
    with pytest.raises(DirectoryAway, match="self-signed"):
        directory_client.look(slapd.directory(ca_file=""))


@contextmanager
def listener(answer: bytes | None) -> Iterator[tuple[int, list[bytes]]]:
    """Record what is sent, and answer each message. None: never answer."""
    heard: list[bytes] = []
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                channel, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=talk, args=[channel], daemon=True).start()

    def talk(channel: socket.socket) -> None:
        with channel:
            try:
                while data := channel.recv(4096):
                    heard.append(data)
                    if answer is not None:
                        channel.sendall(answer)
            except OSError:
                return

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield server.getsockname()[1], heard
    finally:
        server.close()


REFUSED_START_TLS = bytes.fromhex("300c02010178070a010204000400")
"""An answer to StartTLS: protocolError."""


@pytest.mark.once
@pytest.mark.parametrize(
    ("tls", "answer"),
    [
        ("ldaps", REFUSED_START_TLS),
        ("ldaps", b"nonsense" * 10),
        ("starttls", REFUSED_START_TLS),
    ],
)
def test_no_password_goes_to_a_server_without_tls(slapd, tls, answer):
    with listener(answer) as (port, heard):
        url = f"{'ldaps' if tls == 'ldaps' else 'ldap'}://127.0.0.1:{port}"
        for more in ({}, DIRECT):
            directory = slapd.directory(urls=(url,), tls=tls, **more)
            with pytest.raises((DirectoryAway, DirectoryAnswerInvalid)):
                asked(directory, "mia", "correct horse")
        sent = b"".join(heard)
    assert sent
    assert b"horse" not in sent and b"service" not in sent


@pytest.mark.once
@pytest.mark.parametrize(
    ("scheme", "tls", "answer"),
    [("ldaps", "ldaps", None), ("ldap", "starttls", b"nonsense" * 10)],
)
def test_a_server_that_never_answers_is_away(slapd, monkeypatch, scheme, tls, answer):
    """libldap alone would wait for ever."""
    monkeypatch.setattr(directory_client, "TIMEOUT_SECONDS", 1.0)
    with listener(answer) as (port, heard):
        url = f"{scheme}://127.0.0.1:{port}"
        directory = slapd.directory(urls=(url,), tls=tls)
        for _ in range(3):
            with pytest.raises(DirectoryAway, match="no answer in 1 s"):
                claims_of_login(directory, user="mia", password=PASSWORD)
    # The second and third try did not ask it.
    assert len(heard) <= 1


# --- signing in -------------------------------------------------------------------


def test_a_new_person_gets_an_account_and_the_groups(site):
    vision = make_account("vision")
    ClaimMapping.objects.create(issuer="ldap", value="gpu", account=vision)
    here = Client()
    assert sign_in(client=here).status_code == 302
    assert is_in(here)
    mia = User.objects.get()
    assert (mia.username, mia.email, mia.display_name) == (
        "mia",
        "mia@example.org",
        "Mia",
    )
    assert not mia.has_usable_password()
    assert Membership.objects.get(user=mia, active=True).account == vision
    assert "identity.person-made" in verbs()
    assert sign_in("MIA").status_code == 302
    assert User.objects.count() == 1


def test_the_entry_says_the_unix_user_where_the_site_wants_it(site, settings):
    sign_in()
    assert User.objects.get().unix_user == ""
    names = {"unix_user_claim": "uid", "unix_uid_claim": "uidNumber"}
    use(settings, site.directory(**names))
    sign_in()
    mia = User.objects.get()
    assert (mia.unix_user, unix_uid(mia)) == ("mia", 2718)
    # Tom has no Unix account in the directory.
    sign_in("tom")
    assert User.objects.get(username="tom").unix_user == ""


def test_people_without_a_mapped_group_get_no_account(site, settings):
    use(settings, site.directory(sign_up="mapped"))
    ClaimMapping.objects.create(
        issuer="ldap", value="gpu", account=make_account("vision")
    )
    # The club that calls itself admins gives nothing.
    ClaimMapping.objects.create(issuer="ldap", value="admins", role="operator")
    page = sign_in("zoë")
    assert "none of your groups there has access" in page.content.decode()
    assert not User.objects.exists()
    assert sign_in("mia").status_code == 302
    assert not User.objects.get().is_superuser


def test_a_wrong_password_is_counted_under_every_spelling(site):
    sign_in("mia", "wrong")
    sign_in("MIA", "wrong")
    sign_in("Mia", "wrong")
    found = AccessAttempt.objects.get()
    assert (found.username, found.failures_since_start) == ("mia", 3)
    assert not User.objects.exists()
    # Logins are counted under the portal's user name, so failures are as well.
    make_user("Mia")
    sign_in("mia", "wrong")
    sign_in("MIA", "wrong")
    assert AccessAttempt.objects.get(username="Mia").failures_since_start == 2


@pytest.fixture
def locked():
    """A user name with as many failures as there may be."""
    AccessAttempt.objects.create(
        username="mia",
        ip_address="127.0.0.1",
        failures_since_start=10,
        attempt_time=timezone.now(),
    )


@pytest.mark.once
def test_after_ten_failures_the_right_password_is_refused(site, locked):
    assert sign_in("mia").status_code == sign_in("MIA").status_code == 429
    assert sign_in("tom").status_code == 302


def test_a_renamed_person_stays_and_a_reused_name_is_another(site):
    """The identity is entryUUID, not the user name."""
    site.add(person("eva"))
    try:
        sign_in("eva")
        eva = User.objects.get()
        site.rename("eva", "eva-maria")
        assert sign_in("eva").status_code == 200
        assert sign_in("eva-maria").status_code == 302
        assert User.objects.get() == eva and eva.identities.count() == 1
        site.add(person("eva", "another password"))
        page = sign_in("eva", "another password")
        assert "Another person has your user name here" in page.content.decode()
        assert Identity.objects.count() == User.objects.count() == 1
        assert "_auth_user_id" not in page.wsgi_request.session
    finally:
        site.remove(f"uid=eva-maria,{PEOPLE}")
        site.remove(f"uid=eva,{PEOPLE}")


def test_nobody_is_found_by_mail_or_user_name(site):
    make_user("mia", email="mia@example.org")
    make_user("boss", email="mia@example.org", is_superuser=True, is_staff=True)
    page = sign_in("mia")
    assert "Another person has your user name here" in page.content.decode()
    assert not Identity.objects.exists()


def test_a_person_connects_the_login_and_then_signs_in_with_it(site):
    ada = make_user("ada")
    here = Client()
    assert sign_in("ada", LOCAL_PASSWORD, here).status_code == 302
    assert "/me/directory/connect/" in here.get("/me/").content.decode()
    page = "/me/directory/connect/"
    assert here.get(page).status_code == 200
    wrong = here.post(page, {"username": "Mia", "password": "wrong"})
    assert wrong.status_code == 422
    assert AccessAttempt.objects.get().username == "mia"
    assert here.post(page, {"username": "mia", "password": ""}).status_code == 422
    done = here.post(page, {"username": "mia", "password": PASSWORD})
    assert done.status_code == 302
    there = Client()
    assert sign_in("mia", client=there).status_code == 302
    assert there.get("/me/").wsgi_request.user == ada
    # Nobody else can have it.
    other = Client()
    other.force_login(make_user("tim"))
    taken = other.post(page, {"username": "mia", "password": PASSWORD})
    assert taken.status_code == 409
    assert "belongs to another person here" in taken.content.decode()
    assert "identity.linked" in verbs()


@pytest.mark.once
def test_passwords_of_others_cannot_be_guessed_by_connecting(site, locked):
    here = Client()
    here.force_login(make_user("ada"))
    sent = {"username": "Mia", "password": PASSWORD}
    assert here.post("/me/directory/connect/", sent).status_code == 429
    assert not Identity.objects.exists()


def test_a_locked_or_removed_person_ends_at_the_next_sign_in(site):
    site.add(person("kim"))
    sign_in("kim")
    # For ever, by the directory's own policy of passwords.
    site.set("kim", "pwdAccountLockedTime", "000001010000Z")
    page = sign_in("kim")
    assert "Wrong user name or password." in page.content.decode()
    site.remove(f"uid=kim,{PEOPLE}")
    assert sign_in("kim").status_code == 200


def test_an_account_that_was_switched_off_here_stays_off(site):
    sign_in("mia")
    User.objects.update(is_active=False)
    page = sign_in("mia")
    assert "Your account here is switched off" in page.content.decode()
    assert "_auth_user_id" not in page.wsgi_request.session


def test_a_second_factor_is_asked_for_as_after_a_password(site):
    sign_in("mia")
    SecondFactor.objects.create(user=User.objects.get(), kind="app", name="phone")
    here = Client()
    assert sign_in("mia", client=here)["Location"] == "/second-factor/"
    assert not is_in(here)


def test_the_last_admin_stays_one(site):
    ClaimMapping.objects.create(issuer="ldap", value="gpu", role="operator")
    sign_in("tom")
    assert User.objects.get().is_superuser
    ClaimMapping.objects.update(value="gone")
    sign_in("tom")
    assert User.objects.get().is_superuser
    assert verbs()[-1] == "identity.operator-kept"


# --- a directory that is away -----------------------------------------------------


def test_an_absent_directory_ends_nothing_and_the_form_says_why(site, settings):
    here = Client()
    sign_in("mia", client=here)
    away = site.directory(urls=("ldaps://127.0.0.1:1",))
    use(settings, away)
    assert is_in(here)
    page = sign_in("mia").content.decode()
    assert "Uni Example does not answer." in page
    assert "People who are signed in can go on working." in page
    # The reason may name hosts of the site.
    assert "contact LDAP server" not in page
    # Nobody is locked out because of it.
    assert not AccessAttempt.objects.exists()
    make_user("boss", is_superuser=True, is_staff=True)
    boss = Client()
    assert sign_in("boss", LOCAL_PASSWORD, boss).status_code == 302
    assert is_in(boss)


def test_passwords_of_the_portal_are_not_guessed_while_it_is_away(site, settings):
    """The page is the same for all, but these failures count."""
    make_user("boss", is_superuser=True, is_staff=True)
    use(settings, site.directory(urls=("ldaps://127.0.0.1:1",)))
    page = sign_in("boss", "wrong").content.decode()
    assert "Uni Example does not answer." in page
    assert AccessAttempt.objects.get().username == "boss"


@pytest.mark.once
def test_an_address_asks_the_directory_so_often_and_no_more(
    site, settings, monkeypatch
):
    """Over the limit it is not asked. A guessed password of the portal counts."""
    monkeypatch.setattr("gpuportal.directory.directory_backend.PER_MINUTE", 0)
    monkeypatch.setattr(
        directory_client.subprocess, "run", lambda *_: pytest.fail("it was asked")
    )
    make_user("boss")
    assert sign_in("mia").status_code == 429
    assert not AccessAttempt.objects.exists()
    assert sign_in("boss", "wrong").status_code == 429
    assert AccessAttempt.objects.get().username == "boss"
    here = Client()
    assert sign_in("boss", LOCAL_PASSWORD, here).status_code == 302
    sent = {"username": "mia", "password": PASSWORD}
    assert here.post("/me/directory/connect/", sent).status_code == 429


def test_settings_that_do_not_work_are_not_explained_to_visitors(site, settings):
    use(settings, site.directory(bind_password="wrong"), passwords=False)
    page = sign_in("mia").content.decode()
    assert "You were not signed in. Contact the lab admin" in page
    assert SERVICE not in page
    assert "Forgot your password?" not in page


@pytest.mark.once
def test_the_right_password_of_the_portal_never_goes_to_the_directory(
    site, settings, monkeypatch
):
    make_user("boss")
    monkeypatch.setattr(
        directory_client.subprocess, "run", lambda *_: pytest.fail("it was asked")
    )
    assert sign_in("boss", LOCAL_PASSWORD).status_code == 302


FAULTS = {
    "well": ("sample entries have what a sign-in needs", {}),
    "bind": ("it does not accept", {"bind_password": "wrong"}),
    "base": ("it has no entry ou=x", {"base": "ou=x,dc=example,dc=org"}),
    "filter": ("matches (sn={user})", {"filter": "(sn={user})", "base": GROUPS}),
    "id": ("has objectGUID", {"id_attribute": "objectGUID"}),
    "certificate": ("its certificate is not valid", {"ca_file": ""}),
    "direct": ("only a person can bind", DIRECT),
}


@pytest.mark.once
def test_the_doctor_says_what_is_wrong_in_one_line(site, settings, capsys):
    use(settings, site.directory(bind_password="wrong"))
    with pytest.raises(SystemExit):
        call_command("doctor", "--json")
    rows = {row["check"]: row for row in json.loads(capsys.readouterr().out)}
    row = rows["login Uni Example"]
    assert row["state"] == "problem"
    assert "it does not accept cn=portal" in row["fact"]
    assert "LDAP_" in row["fix"]


@pytest.mark.once
@pytest.mark.parametrize(("text", "more"), FAULTS.values(), ids=FAULTS)
def test_what_the_doctor_sees(slapd, text, more):
    try:
        seen = directory_client.look(slapd.directory(**more))
    except (DirectoryAway, DirectoryAnswerInvalid) as error:
        seen = str(error)
    assert text in seen
    assert "\n" not in seen
