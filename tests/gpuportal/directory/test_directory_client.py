"""What a directory's answer means, and what the site's checks say. No server."""

import threading
import uuid
from dataclasses import replace

import pytest
from ldap.dn import escape_dn_chars
from ldap.filter import escape_filter_chars

from gpuportal import checks
from gpuportal.directory import directory_client, directory_process
from gpuportal.directory.directory_client import (
    DirectoryAnswerInvalid,
    DirectoryBusy,
    claims_of_answer,
    claims_of_login,
    may_be_sent,
)
from gpuportal.directory.directory_process import filled, group_values, id_text
from reservations.accounts.identities.directory_settings import Directory
from reservations.accounts.identities.provider_settings import LoginSettings

pytestmark = pytest.mark.pure
UNI = Directory(name="Uni", urls=("ldaps://ldap.example.org",), tls="ldaps")
ANSWER = {
    "state": "person",
    "id": ["7f3c"],
    "username": ["mia", "mia.adams"],
    "name": ["Mia Adams"],
    "mail": ["mia@example.org"],
    "groups": ["GPU  Users"],
}


def test_the_claims_of_an_entry():
    found = claims_of_answer(UNI, ANSWER)
    assert (found.subject, found.username, found.name) == ("7f3c", "mia", "Mia Adams")
    assert found.mail == "mia@example.org"
    assert found.groups == {"gpu users"}


def test_an_entry_may_lack_what_is_not_needed():
    bare = {"id": ["7"], "username": [], "name": [], "mail": [], "groups": None}
    found = claims_of_answer(UNI, bare)
    assert (found.username, found.name, found.mail, found.groups) == ("", "", "", None)


@pytest.mark.parametrize("ids", [[], [""], ["a", "b"], ["a", ""]])
def test_without_one_stable_identifier_nobody_gets_in(ids):
    """No user name takes its place: the next person may get that."""
    with pytest.raises(DirectoryAnswerInvalid, match="one value of entryUUID"):
        claims_of_answer(UNI, ANSWER | {"id": ids})


def test_identifiers_are_text():
    made = uuid.UUID("01234567-89ab-cdef-0123-456789abcdef")
    assert id_text("objectGUID", made.bytes_le) == str(made)
    assert id_text("objectguid", made.bytes_le[:15]) == ""
    assert id_text("entryUUID", b"7F3C") == "7f3c"
    assert id_text("entryUUID", b"\xff") == ""


def test_each_value_is_escaped_once():
    """A value that looks like a place stays what it is."""
    wanted = "(&(member={dn})(memberUid={user}))"
    assert filled(
        wanted, escape_filter_chars, user="{dn}*", dn="cn=a\\,b,({user})"
    ) == ("(&(member=cn=a\\5c,b,\\28{user}\\29)(memberUid={dn}\\2a))")
    found = filled("uid={user},dc=org", escape_dn_chars, user="x,uid=mia+cn=y")
    assert found == "uid=x\\,uid\\=mia\\+cn\\=y,dc=org"


def test_a_group_counts_by_its_way_to_the_base():
    base = "ou=Groups, dc=Example,dc=org"
    names = {
        "CN=GPU Users,OU=groups,DC=example,DC=org": "gpu users",
        "cn=gpu,ou=vision,ou=groups,dc=example,dc=org": "cn=gpu,ou=vision",
        # A name that looks like a way, made directly below the base or deeper.
        "cn=gpu\\,ou\\=vision,ou=a,ou=groups,dc=example,dc=org": (
            "cn=gpu\\,ou\\=vision,ou=a"
        ),
        "cn=gpu\\,ou\\=vision,ou=groups,dc=example,dc=org": "gpu\\,ou\\=vision",
        "cn=a+ou=b,ou=groups,dc=example,dc=org": "cn=a+ou=b",
    }
    assert group_values(list(names), base) == list(names.values())
    others = [
        "cn=gpu,ou=clubs,dc=example,dc=org",
        "ou=groups,dc=example,dc=org",
        "cn=gpu,ou=groups\\,dc=example,dc=org",
        "cn=gpu,ou=groups,dc=example,dc=org,dc=evil",
        "gpu",
        "",
    ]
    assert group_values(others, base) == []


@pytest.mark.parametrize(
    ("user", "password"),
    [
        ("", "x"),
        ("mia", ""),
        ("mia", "\0"),
        ("mia", "x\0y"),
        ("mia", "\ud800"),
        ("mia", "x" * 4097),
        ("m" * 151, "x"),
        ("mia\ud800", "x"),
        ("mia\u200b", "x"),
        ("mia\n", "x"),
        ("mia  adams", "x"),
        ("mia\u00a0adams", "x"),
    ],
)
def test_what_is_never_sent(user, password):
    assert not may_be_sent(user, password)


def test_what_is_sent():
    assert may_be_sent("zoë", " ")
    assert may_be_sent("Mia Adams", "pässword with spaces ")


def test_a_bind_that_the_directory_took_for_nobody_counts_for_nothing():
    """Whatever it answered to the bind."""

    class Lenient:
        bound = ""

        def simple_bind_s(self, name, password):
            assert name and password

        def whoami_s(self):
            return self.bound

    connection = Lenient()
    for connection.bound in ("", "dn:"):
        with pytest.raises(directory_process.Wrong):
            directory_process._bind_person(connection, "uid=mia", "x")
    connection.bound = "dn:uid=mia"
    directory_process._bind_person(connection, "uid=mia", "x")


def test_the_site_says_what_is_missing(settings, monkeypatch):
    plain = replace(UNI, urls=("ldap://ldap.example.org",), tls="plain")
    settings.LOGIN_SETTINGS = LoginSettings(("ldap",), (), (), directory=plain)
    monkeypatch.setattr(checks, "is_library_installed", lambda: False)
    found = checks.people_can_sign_in()
    assert [one.id for one in found] == ["gpuportal.E009", "gpuportal.W004"]
    assert "requirements-ldap.txt" in found[0].hint
    monkeypatch.setattr(directory_client, "is_library_installed", lambda: False)
    with pytest.raises(DirectoryAnswerInvalid, match="python-ldap is not installed"):
        directory_client.look(plain)


def test_too_many_calls_are_refused_and_do_not_stop_the_next(monkeypatch):
    monkeypatch.setattr(directory_client, "is_library_installed", lambda: True)
    monkeypatch.setattr(directory_client, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(directory_client, "_places", threading.BoundedSemaphore(1))
    plain = replace(UNI, tls="plain")
    with directory_client._places, pytest.raises(DirectoryBusy, match="too many"):
        claims_of_login(plain, user="mia", password="x")

    def no_process(*_arguments, **_more):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(directory_client.subprocess, "run", no_process)
    # It is tried: neither a place nor a pause is left over.
    for _ in range(2):
        with pytest.raises(DirectoryBusy, match="no process can be started"):
            claims_of_login(plain, user="mia", password="x")
