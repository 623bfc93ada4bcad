"""Calls to the LDAP directory. Each is a process that is ended after some seconds."""

import importlib.util
import json
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.views.decorators.debug import sensitive_variables

from reservations.accounts.identities.directory_settings import Directory
from reservations.accounts.identities.identity_source import folded_group
from reservations.accounts.identities.rules import Claims, read_claims

PROGRAM = Path(__file__).with_name("directory_process.py")
TIMEOUT_SECONDS = 15.0
"""Of one call, in all. It is enough to try a second server."""
PAUSE_SECONDS = 5.0
"""After a failure, how long the directory is not asked again. So an absent one does not
keep threads busy."""
MOST_CALLS = 4
"""Most calls of this process at a time. They must leave threads for all other pages if
the directory is silent (``THREADS`` of ``http/handler.py``)."""
WAIT_SECONDS = 0.5
"""How long a call waits for its turn."""
LONGEST_NAME = 150
LONGEST_PASSWORD = 4096
BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
"""Where Linux has the certificates of public authorities."""
_places = threading.BoundedSemaphore(MOST_CALLS)
_probe = threading.Lock()
"""Held by the one call that tries a directory that was away."""


class DirectoryAway(Exception):
    """The directory did not answer."""


class DirectoryBusy(DirectoryAway):
    """The directory was not asked, because too many calls are under way."""


class PersonUnanswered(DirectoryAway):
    """The directory can be reached, but did not answer about one person."""


class DirectoryAnswerInvalid(Exception):
    """The directory, or the site's settings of it, cannot be used."""


class _Seen:
    """The results of the last calls, for all threads.

    It holds no exception, because a traceback keeps the passwords of its frames.
    """

    failure: tuple[str, float] | None = None
    """Why the directory was away, and until when it is not asked (monotonic seconds).
    After that one call tries it."""
    first_url = ""
    """The server to ask first: the one that answered last."""


def is_library_installed() -> bool:
    """Return whether python-ldap is here, which only sites with a directory need."""
    return importlib.util.find_spec("ldap") is not None


def may_be_sent(user: str, password: str) -> bool:
    """Return whether a user name and a password may be sent to a directory at all.

    An empty password would bind nobody, with success (RFC 4513, section 5.1.2). A
    directory ignores characters that do not print, so these would give one person many
    names, each with its own count of failures.

    >>> may_be_sent("mia", ""), may_be_sent("mia", "\\0"), may_be_sent(" mia", "x")
    (False, False, False)
    """
    return (
        0 < len(user) <= LONGEST_NAME
        and user.isprintable()
        and user == " ".join(user.split())
        and 0 < len(password) <= LONGEST_PASSWORD
        and "\0" not in password
        and not any("\ud800" <= one <= "\udfff" for one in user + password)
    )


@sensitive_variables("password")
def claims_of_login(directory: Directory, *, user: str, password: str) -> Claims | None:
    """Return what the directory says about a person who typed their password.

    None: it does not know the user name with this password.

    Raises:
        DirectoryAway, DirectoryAnswerInvalid.
    """
    if not may_be_sent(user, password):
        return None
    _check_pause()
    with _turn():
        _check_pause()
        with _probe_turn():
            try:
                answer = _call(directory, act="person", user=user, password=password)
            except DirectoryBusy:
                raise
            except (PersonUnanswered, DirectoryAnswerInvalid):
                _Seen.failure = None
                raise
            except DirectoryAway as error:
                _Seen.failure = (str(error), time.monotonic() + PAUSE_SECONDS)
                raise
            _Seen.failure = None
    if answer["state"] == "wrong":
        return None
    return claims_of_answer(directory, answer)


def claims_of_answer(directory: Directory, answer: Mapping[str, Any]) -> Claims:
    """Return the claims of an entry.

    Raises:
        DirectoryAnswerInvalid: the entry has no stable identifier, or several. No other
            attribute takes its place, because the next person may get a user name.
    """
    ids = [one for one in answer["id"] if one]
    if len(ids) != 1 or len(answer["id"]) != 1:
        raise DirectoryAnswerInvalid(
            f"the entry does not have one value of {directory.id_attribute}"
        )
    groups = answer["groups"]
    first = {name: (answer[name] or [""])[0] for name in ("username", "name", "mail")}
    raw = {
        "sub": ids[0],
        "username": first["username"],
        "name": first["name"],
        "email": first["mail"],
        "unix_user": answer.get("unix_user"),
        "unix_uid": answer.get("unix_uid"),
        "groups": None if groups is None else [folded_group(one) for one in groups],
    }
    return read_claims(
        raw,
        username_claim="username",
        groups_claim="groups",
        unix_user_claim="unix_user",
        unix_uid_claim="unix_uid" if directory.unix_uid_claim else "",
    )


def look(directory: Directory) -> str:
    """Connect, bind and look at some entries. Return what was seen, in one line.

    Raises:
        DirectoryAway, DirectoryAnswerInvalid: people cannot sign in, and why.
    """
    with _turn():
        answer = _call(directory, act="look")
    if answer["state"] == "reached":
        return "it answers (LDAP_USER_DN: only a person can bind)"
    count, seen = answer["entries"], answer["seen"]
    if not count:
        raise DirectoryAnswerInvalid(
            f"no entry below {directory.base} matches {directory.filter}"
        )
    for name in (directory.id_attribute, directory.username_attribute):
        if not seen[name]:
            raise DirectoryAnswerInvalid(
                f"none of {count} entries has {name} that may be read"
            )
    if not seen.get("memberof", 1):
        raise DirectoryAnswerInvalid(
            f"none of {count} entries has memberOf that may be read: no group would "
            "give anything. Set LDAP_GROUP_FILTER to search groups"
        )
    return f"it answers, and {count} sample entries have what a sign-in needs"


def _check_pause() -> None:
    """Refuse a call shortly after a failure.

    Raises:
        DirectoryAway.
    """
    failure = _Seen.failure
    if failure is not None and time.monotonic() < failure[1]:
        raise DirectoryAway(failure[0])


@contextmanager
def _turn() -> Iterator[None]:
    """Take one of the places for calls.

    Raises:
        DirectoryBusy.
    """
    if not _places.acquire(timeout=WAIT_SECONDS):
        raise DirectoryBusy("too many sign-ins wait for it")
    try:
        yield
    finally:
        _places.release()


@contextmanager
def _probe_turn() -> Iterator[None]:
    """Let one call at a time through while the last one failed.

    Raises:
        DirectoryAway.
    """
    failure = _Seen.failure
    if failure is None:
        yield
        return
    if not _probe.acquire(blocking=False):
        raise DirectoryAway(failure[0])
    try:
        # The one before may just have failed.
        _check_pause()
        yield
    finally:
        _probe.release()


def _urls(directory: Directory) -> list[str]:
    """Return the servers, in the order in which to ask them."""
    return sorted(directory.urls, key=lambda url: url != _Seen.first_url)


@sensitive_variables("asked", "request", "done")
def _call(directory: Directory, **asked: str) -> dict[str, Any]:
    """Ask the directory once.

    Raises:
        DirectoryAway, DirectoryAnswerInvalid.
    """
    if not is_library_installed():
        raise DirectoryAnswerInvalid("the package python-ldap is not installed")
    urls = _urls(directory)
    request = {
        "urls": urls,
        "tls": directory.tls,
        "ca_file": "" if directory.tls == "plain" else _ca_file(directory),
        "bind_dn": directory.bind_dn,
        "bind_password": directory.bind_password,
        "user_dn": directory.user_dn,
        "base": directory.base,
        "filter": directory.filter,
        "attributes": {
            "id": directory.id_attribute,
            "username": directory.username_attribute,
            "name": directory.name_attribute,
            "mail": directory.mail_attribute,
            **_unix_attributes(directory),
        },
        "login_attributes": directory.login_attributes,
        "group_base": directory.group_base,
        "group_filter": directory.group_filter,
        **asked,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-X", "utf8", str(PROGRAM)],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            cwd="/",
            # libldap would also read ldap.conf, .ldaprc and variables, which can switch
            # the check of certificates off.
            env={"LDAPNOINIT": "1", "PATH": os.defpath},
        )
    except subprocess.TimeoutExpired:
        # The first server is silent, so the next call begins with the second.
        _Seen.first_url = urls[1 % len(urls)]
        # Not its text, which has what was sent.
        raise DirectoryAway(f"no answer in {TIMEOUT_SECONDS:g} s") from None
    except OSError as error:
        raise DirectoryBusy(f"no process can be started: {error.strerror}") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise DirectoryAnswerInvalid(f"the call failed: {last[:120]}") from None
    if answer["state"] == "away":
        raise DirectoryAway(answer["why"])
    _Seen.first_url = answer["url"]
    if answer["state"] == "unanswered":
        raise PersonUnanswered(answer["why"])
    if answer["state"] == "invalid":
        raise DirectoryAnswerInvalid(answer["why"])
    return answer


def _unix_attributes(directory: Directory) -> dict[str, str]:
    names = {
        "unix_user": directory.unix_user_claim,
        "unix_uid": directory.unix_uid_claim,
    }
    return {name: attribute for name, attribute in names.items() if attribute}


def _ca_file(directory: Directory) -> str:
    paths = ssl.get_default_verify_paths()
    names = (os.environ.get(paths.openssl_cafile_env, ""), paths.cafile, *BUNDLES)
    found = directory.ca_file or next(
        (name for name in names if name and Path(name).is_file()), ""
    )
    if not found:
        raise DirectoryAnswerInvalid(
            "this machine has no file of trusted authorities. Set LDAP_CA_FILE"
        )
    return found
