"""What a directory's answer means, and what the site's checks say. No server."""

import json
import subprocess
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from itertools import islice

import ldap
import pytest
from ldap.dn import escape_dn_chars
from ldap.filter import escape_filter_chars

from gpuportal import checks
from gpuportal.directory import directory_client, directory_process
from gpuportal.directory.directory_client import (
    MOST_CALLS,
    DirectoryAnswerInvalid,
    DirectoryAway,
    DirectoryBusy,
    PersonUnanswered,
    claims_of_answer,
    claims_of_login,
    may_be_sent,
)
from gpuportal.directory.directory_process import filled, group_values, id_text
from gpuportal.http.handler import THREADS
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


PLAIN = replace(UNI, urls=("ldap://one", "ldap://two"), tls="plain")


@pytest.fixture
def calls(monkeypatch):
    """Set what a call does, with ``calls(run)``."""
    monkeypatch.setattr(directory_client, "is_library_installed", lambda: True)
    monkeypatch.setattr(directory_client._Seen, "failure", None)
    monkeypatch.setattr(directory_client._Seen, "first_url", "")

    def use(run):
        monkeypatch.setattr(directory_client.subprocess, "run", run)

    return use


def sign_in():
    return claims_of_login(PLAIN, user="mia", password="secret")


def no_answer(*_arguments, **_more):
    raise subprocess.TimeoutExpired("ldap", 15)


def answer(**values):
    return lambda *_arguments, **_more: subprocess.CompletedProcess(
        [], 0, stdout=json.dumps(values).encode()
    )


def test_a_silent_directory_leaves_threads_for_all_other_pages(calls):
    assert MOST_CALLS <= THREADS // 4
    silent, asked = threading.Event(), []

    def run(*_arguments, **_more):
        asked.append(1)
        silent.wait(60)
        no_answer()

    calls(run)
    with ThreadPoolExecutor(THREADS) as threads:
        tries = [threads.submit(sign_in) for _ in range(THREADS)]
        # All others end while the directory is still silent.
        ended = list(islice(as_completed(tries), THREADS - MOST_CALLS))
        assert {type(one.exception()) for one in ended} == {DirectoryBusy}
        silent.set()
        rest = [one.exception() for one in set(tries) - set(ended)]
    assert {type(one) for one in rest} == {DirectoryAway}
    assert len(asked) == MOST_CALLS
    calls(lambda *_arguments, **_more: pytest.fail("it was asked in the pause"))
    with pytest.raises(DirectoryAway, match="no answer in 15 s"):
        sign_in()


def test_a_call_that_waited_sees_the_pause(calls, monkeypatch):
    calls(lambda *_arguments, **_more: pytest.fail("it was asked"))

    class Places:
        def acquire(self, *, timeout):
            directory_client._Seen.failure = ("gone", time.monotonic() + 60)
            return True

        def release(self):
            pass

    monkeypatch.setattr(directory_client, "_places", Places())
    with pytest.raises(DirectoryAway, match="gone"):
        sign_in()


def test_after_the_pause_one_call_tries(calls):
    directory_client._Seen.failure = ("gone", 0.0)
    begun, silent = threading.Event(), threading.Event()

    def run(*_arguments, **_more):
        begun.set()
        silent.wait(60)
        return answer(state="wrong", url="ldap://two")()

    calls(run)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(sign_in)
        assert begun.wait(60)
        with pytest.raises(DirectoryAway, match="gone"):
            sign_in()
        silent.set()
        assert first.result() is None
    assert directory_client._Seen.failure is None
    assert directory_client._urls(PLAIN) == ["ldap://two", "ldap://one"]


def test_a_failure_is_kept_as_text(calls):
    """An exception would keep the passwords in the frames of its traceback."""
    calls(no_answer)
    for _ in range(2):
        with pytest.raises(DirectoryAway) as caught:
            sign_in()
        assert caught.value.__context__ is None or caught.value.__suppress_context__
    text, until = directory_client._Seen.failure
    assert (type(text), type(until)) == (str, float)
    # The silent server is not the first one any more.
    assert directory_client._urls(PLAIN)[0] == "ldap://two"


def test_a_process_that_cannot_start_leaves_nothing_over(calls):
    def no_process(*_arguments, **_more):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    calls(no_process)
    # It is tried: neither a place nor a pause is left over.
    for _ in range(MOST_CALLS + 1):
        with pytest.raises(DirectoryBusy, match="no process can be started"):
            sign_in()


def test_one_person_without_an_answer_stops_no_other(calls):
    calls(answer(state="unanswered", why="Timed out", url="ldap://one"))
    with pytest.raises(PersonUnanswered, match="Timed out"):
        sign_in()
    assert directory_client._Seen.failure is None


@pytest.mark.parametrize(
    ("fault", "at", "user_dn", "state"),
    [
        (ldap.BUSY, "cn=portal", "", "away"),
        (ldap.SERVER_DOWN, "cn=portal", "", "away"),
        (ldap.TIMEOUT, "uid=mia", "", "unanswered"),
        (ldap.SERVER_DOWN, "uid=mia", "", "unanswered"),
        (ldap.BUSY, "uid=mia", "uid={user}", "unanswered"),
        (ldap.SERVER_DOWN, "uid=mia", "uid={user}", "away"),
    ],
)
def test_what_fails_before_the_bind_of_a_person(monkeypatch, fault, at, user_dn, state):
    class Connection:
        def simple_bind_s(self, name, password):
            if name == at:
                raise fault

    monkeypatch.setattr(directory_process, "_connected", lambda _: Connection())
    monkeypatch.setattr(directory_process, "_entry", lambda *_: ("uid=mia", {}))
    request = {
        **{"act": "person", "urls": ["ldap://one"], "tls": "plain", "base": ""},
        **{"bind_dn": "cn=portal", "bind_password": "x", "user_dn": user_dn},
        **{"user": "mia", "password": "x"},
    }
    assert directory_process.answer_of(request)["state"] == state


def test_part_of_a_long_list_of_groups_is_not_known_rather_than_empty():
    """Active Directory returns at most 1,500 values of an attribute."""
    request = {"group_base": "dc=org", "group_filter": ""}

    def groups(values):
        return directory_process._groups(None, request, "uid=mia", values, ["mia"])

    assert groups({"memberof": [], "memberof;range=0-1499": [b"cn=a,dc=org"]}) is None
    assert groups({}) == []
