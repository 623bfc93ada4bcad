"""Ask an LDAP directory, in a process that ends when its time is over.

libldap waits for ever if a server accepts a connection and then stays silent during the
TLS handshake. So the portal starts this file as a program (``directory_client.py``) and
ends it. The request comes on stdin and the answer goes to stdout, both as JSON. A
password is in no argument and in no variable of the environment. The file imports
nothing of the portal, so that it starts fast.
"""

import json
import re
import socket
import ssl
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import ldap
from ldap.dn import escape_dn_chars, str2dn
from ldap.filter import escape_filter_chars

CONNECT_SECONDS = 2
"""For the connection to one server."""
ANSWER_SECONDS = 5
MOST_GROUPS = 1001
SAMPLE_ENTRIES = 20
UNREACHED = (ldap.SERVER_DOWN, ldap.CONNECT_ERROR)
AWAY = (
    *UNREACHED,
    *(ldap.TIMEOUT, ldap.BUSY, ldap.UNAVAILABLE, ldap.TIMELIMIT_EXCEEDED),
)
NOT_ADMITTED = (
    *(ldap.INVALID_CREDENTIALS, ldap.NO_SUCH_OBJECT, ldap.INVALID_DN_SYNTAX),
    # What FreeIPA and 389 Directory Server answer for locked accounts.
    *(ldap.UNWILLING_TO_PERFORM, ldap.CONSTRAINT_VIOLATION),
    *(ldap.INAPPROPRIATE_AUTH, ldap.INSUFFICIENT_ACCESS),
)
"""Answers to the bind of a person that mean no more than: not with this password."""
MEMBER_OF = "memberof"
START_TLS = bytes.fromhex("301d02010177188016") + b"1.3.6.1.4.1.1466.20037"
"""The request of RFC 4511, section 4.14.1."""
Entry = tuple[str, dict[str, list[bytes]]]


class Wrong(Exception):
    """The directory does not know this user name with this password."""


class Unusable(Exception):
    """The directory's answer, or the site's settings of it, cannot be used."""


class Unanswered(Exception):
    """The directory can be reached, but did not answer about this person."""


def answer_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of the first server that is not away, and its address.

    If all are away, it is the answer of the first.
    """
    answers = []
    for url in request["urls"]:
        answers.append(_answer_of_server({**request, "url": url}))
        if answers[-1]["state"] != "away":
            return {**answers[-1], "url": url}
    return answers[0]


def _answer_of_server(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer of one server, whatever happens."""
    try:
        return _sample(request) if request["act"] == "look" else _person(request)
    except Wrong:
        return {"state": "wrong"}
    except Unusable as error:
        return {"state": "invalid", "why": str(error)}
    except Unanswered as error:
        return {"state": "unanswered", "why": str(error)}
    except AWAY as error:
        # Only the doctor takes the time for a second connection.
        fault = _tls_fault(request) if request["act"] == "look" else ""
        return {"state": "away", "why": fault or _reason(error)}
    except ldap.REFERRAL:
        why = "it refers to another server, and referrals are not followed"
        return {"state": "invalid", "why": why}
    except ldap.LDAPError as error:
        return {"state": "invalid", "why": _reason(error)}


# --- texts ------------------------------------------------------------------------


def filled(template: str, escape: Callable[[str], str], **values: str) -> str:
    """Put values into the places of a filter or a DN, each escaped, in one pass.

    >>> filled("(uid={user})", escape_filter_chars, user="*)(uid={dn}", dn="x")
    '(uid=\\\\2a\\\\29\\\\28uid={dn})'
    """
    return re.sub(
        r"\{(user|dn)\}", lambda found: escape(values.get(found[1], "")), template
    )


def group_values(names: Sequence[str], base: str) -> list[str]:
    """Return what each group below a base is called, in small letters.

    It is the name alone (``gpu``) directly below the base, and all the way to the base
    deeper (``cn=gpu,ou=vision``). So nobody who may make groups elsewhere in the
    directory can make one that counts. Other groups are left out.
    """
    root = _parts(base)
    found = []
    for name in names:
        try:
            parts = _parts(name)
        except ldap.DECODING_ERROR:
            continue
        inner = parts[: len(parts) - len(root)]
        if not inner or parts[len(inner) :] != root:
            continue
        if len(inner) == len(inner[0]) == 1:
            # Escaped, so that no name looks like a way.
            found.append(escape_dn_chars(inner[0][0][1]))
        else:
            found.append(
                ",".join(
                    "+".join(f"{kind}={escape_dn_chars(text)}" for kind, text in part)
                    for part in inner
                )
            )
    return found


def _parts(name: str) -> list[list[tuple[str, str]]]:
    return [
        sorted((kind.lower(), " ".join(text.split()).lower()) for kind, text, _ in part)
        for part in str2dn(name)
    ]


def id_text(kind: str, raw: bytes) -> str:
    """Return the text of a stable identifier.

    objectGUID is 16 bytes in Microsoft's order, which mixes little and big endian.
    "": not readable.
    """
    if kind.lower() == "objectguid":
        return str(uuid.UUID(bytes_le=raw)) if len(raw) == 16 else ""
    return _text(raw).strip().lower()


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return ""


def _reason(error: ldap.LDAPError) -> str:
    said = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
    words = [str(said.get(name, "")).strip() for name in ("desc", "info")]
    text = ": ".join(dict.fromkeys(word for word in words if word))
    # Active Directory adds a NUL at the end.
    shown = "".join(one for one in text if one.isprintable())
    return shown[:200] or type(error).__name__


def _tls_fault(request: Mapping[str, Any]) -> str:
    """Return what is wrong with the certificate of a server.

    libldap only says that it cannot contact the server. This is for the text: what it
    returns lets nobody in. "": nothing, or there is no connection at all.
    """
    if request["tls"] == "plain":
        return ""
    parts = urlsplit(request["url"])
    port = parts.port or (636 if request["tls"] == "ldaps" else 389)
    try:
        context = ssl.create_default_context(cafile=request["ca_file"])
        with socket.create_connection((parts.hostname, port), CONNECT_SECONDS) as raw:
            if request["tls"] == "starttls":
                raw.sendall(START_TLS)
                raw.recv(4096)
            with context.wrap_socket(raw, server_hostname=parts.hostname):
                return ""
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not valid: {error.verify_message}"
    except OSError:
        return ""


# --- the conversation -------------------------------------------------------------


def _connected(request: Mapping[str, Any]) -> Any:
    """Return a connection on which a password may be sent."""
    connection = ldap.initialize(request["url"], bytes_mode=False)
    connection.timeout = ANSWER_SECONDS
    for option, value in (
        (ldap.OPT_PROTOCOL_VERSION, 3),
        (ldap.OPT_NETWORK_TIMEOUT, float(CONNECT_SECONDS)),
        (ldap.OPT_REFERRALS, 0),
        (ldap.OPT_DEREF, ldap.DEREF_NEVER),
    ):
        connection.set_option(option, value)
    if request["tls"] != "plain":
        for option, value in (
            (ldap.OPT_X_TLS_REQUIRE_CERT, ldap.OPT_X_TLS_DEMAND),
            (ldap.OPT_X_TLS_PROTOCOL_MIN, ldap.OPT_X_TLS_PROTOCOL_TLS1_2),
            (ldap.OPT_X_TLS_CACERTFILE, request["ca_file"]),
        ):
            connection.set_option(option, value)
        try:
            # It applies the options above, so it comes last.
            connection.set_option(ldap.OPT_X_TLS_NEWCTX, 0)
        except ldap.LDAPError as error:
            why = f"{request['ca_file']} has no certificate that can be read"
            raise Unusable(why) from error
    if request["tls"] == "starttls":
        try:
            connection.start_tls_s()
        except (ldap.PROTOCOL_ERROR, ldap.UNWILLING_TO_PERFORM) as error:
            raise Unusable("it refuses StartTLS") from error
    return connection


def _bind_service(connection: Any, request: Mapping[str, Any]) -> None:
    """Bind as the site's own account, or as nobody if it has none."""
    name, password = request["bind_dn"], request["bind_password"]
    if bool(name) != bool(password):
        raise Unusable("LDAP_BIND_DN and its password are not both set")
    try:
        connection.simple_bind_s(name, password)
    except NOT_ADMITTED as error:
        whom = f"it does not accept {name}" if name else "it wants LDAP_BIND_DN"
        raise Unusable(f"{whom}: {_reason(error)}") from error


def _bind_person(connection: Any, name: str, password: str) -> None:
    """Check a password.

    A bind without a password succeeds as nobody (RFC 4513, section 5.1.2), and one
    without a name as well. So both are refused before they are sent, and the directory
    has to say afterwards that the bind has an identity.
    """
    if not name or not password or "\0" in password:
        raise Wrong
    try:
        connection.simple_bind_s(name, password)
    except NOT_ADMITTED as error:
        raise Wrong from error
    try:
        bound = connection.whoami_s()
    except (ldap.PROTOCOL_ERROR, ldap.UNWILLING_TO_PERFORM):
        # It does not know the operation (RFC 4532).
        return
    except ldap.INSUFFICIENT_ACCESS as error:
        # The person has to choose a new password first.
        raise Wrong from error
    if bound in ("", "dn:", "u:"):
        raise Wrong


def _found(
    connection: Any,
    base: str,
    scope: int,
    wanted: str,
    attributes: Sequence[str],
    most: int,
) -> tuple[list[Entry], bool]:
    """Return the entries that match a filter, and whether these are all.

    References to other servers are left out.
    """
    found: list[Entry] = []
    number = connection.search_ext(
        base, scope, wanted, attrlist=list(attributes), sizelimit=most
    )
    while True:
        try:
            kind, rows = connection.result(number, all=0)
        except ldap.SIZELIMIT_EXCEEDED:
            return found, False
        found += [
            (name, {key.lower(): list(raw) for key, raw in values.items()})
            for name, values in rows or ()
            if kind == ldap.RES_SEARCH_ENTRY and name
        ]
        if kind == ldap.RES_SEARCH_RESULT:
            return found, True


def _attributes(request: Mapping[str, Any]) -> list[str]:
    names = [*request["attributes"].values(), *request["login_attributes"]]
    if request["group_base"] and not request["group_filter"]:
        names.append(MEMBER_OF)
    return list(dict.fromkeys(names))


def _person(request: Mapping[str, Any]) -> dict[str, Any]:
    """Check a password, and return what the directory says about the person.

    A directory folds letters in ways that the portal does not know. With a search the
    entry shows what was found (`_is_named`). A bind does not, so it takes ASCII only.
    """
    user, password = request["user"], request["password"]
    if not user or not password or (request["user_dn"] and not user.isascii()):
        raise Wrong
    connection = _connected(request)
    if not request["user_dn"]:
        _bind_service(connection, request)
    try:
        return _seen_person(connection, request, user, password)
    except AWAY as error:
        # libldap connects with the first bind, which is the person's with a user_dn.
        if request["user_dn"] and isinstance(error, UNREACHED):
            raise
        raise Unanswered(_reason(error)) from error


def _seen_person(
    connection: Any, request: Mapping[str, Any], user: str, password: str
) -> dict[str, Any]:
    if request["user_dn"]:
        name = filled(request["user_dn"], escape_dn_chars, user=user)
        _bind_person(connection, name, password)
        name, values = _entry(connection, name, ldap.SCOPE_BASE, request)
    else:
        name, values = _entry(connection, request["base"], ldap.SCOPE_SUBTREE, request)
        _bind_person(connection, name, password)
        _bind_service(connection, request)
    kinds = request["attributes"]
    texts = {
        what: [text for raw in values.get(kind.lower(), ()) if (text := _text(raw))]
        for what, kind in kinds.items()
        if what != "id"
    }
    # An entry may have several user names. The typed one goes first.
    texts["username"].sort(key=lambda one: one.casefold() != user.casefold())
    ids = [id_text(kinds["id"], raw) for raw in values.get(kinds["id"].lower(), ())]
    groups = _groups(connection, request, name, values, texts["username"])
    return {"state": "person", "id": ids, "groups": groups, **texts}


def _entry(connection: Any, base: str, scope: int, request: Mapping[str, Any]) -> Entry:
    wanted = filled(request["filter"], escape_filter_chars, user=request["user"])
    try:
        found, complete = _found(
            connection, base, scope, wanted, _attributes(request), 2
        )
    except ldap.NO_SUCH_OBJECT as error:
        raise Unusable(f"it has no entry {base} that may be read") from error
    except ldap.FILTER_ERROR as error:
        raise Unusable("LDAP_FILTER is not a filter") from error
    if len(found) > 1 or not complete:
        raise Unusable("several entries have this user name")
    if not found or not _is_named(found[0], request):
        raise Wrong
    return found[0]


def _is_named(entry: Entry, request: Mapping[str, Any]) -> bool:
    """Return whether an entry has exactly the typed name, apart from the case.

    A directory may find one person by many names, for example without their accents.
    The portal counts failures by name, so only one of these may be used.
    """
    kinds = request["login_attributes"]
    names = (_text(raw) for kind in kinds for raw in entry[1].get(kind.lower(), ()))
    return request["user"].lower() in {name.lower() for name in names}


def _groups(
    connection: Any,
    request: Mapping[str, Any],
    name: str,
    values: Mapping[str, Sequence[bytes]],
    usernames: Sequence[str],
) -> list[str] | None:
    """Return the groups of a person. None: the site reads none, or there are too many.

    Active Directory returns part of a long list, as ``memberOf;range=0-1499``.

    Nobody is in a group whose attribute is missing, because directories leave empty
    attributes out.
    """
    base = request["group_base"]
    if not base:
        return None
    if not request["group_filter"]:
        if any(kind.startswith(f"{MEMBER_OF};range=") for kind in values):
            return None
        names = [_text(raw) for raw in values.get(MEMBER_OF, ())]
        return group_values(names, base)
    user = usernames[0] if usernames else ""
    wanted = filled(request["group_filter"], escape_filter_chars, user=user, dn=name)
    try:
        found, complete = _found(
            connection, base, ldap.SCOPE_SUBTREE, wanted, ["1.1"], MOST_GROUPS
        )
    except ldap.NO_SUCH_OBJECT as error:
        raise Unusable(f"it has no entry {base} that may be read") from error
    except ldap.FILTER_ERROR as error:
        raise Unusable("LDAP_GROUP_FILTER is not a filter") from error
    return group_values([one for one, _ in found], base) if complete else None


def _sample(request: Mapping[str, Any]) -> dict[str, Any]:
    """Connect, bind and look at some entries, as a sign-in does.

    Without an account that may search, only the connection can be tried.
    """
    connection = _connected(request)
    if request["user_dn"]:
        connection.simple_bind_s("", "")
        return {"state": "reached"}
    _bind_service(connection, request)
    wanted = filled(request["filter"], lambda _: "*", user="*")
    try:
        found, _ = _found(
            connection,
            request["base"],
            ldap.SCOPE_SUBTREE,
            wanted,
            _attributes(request),
            SAMPLE_ENTRIES,
        )
    except ldap.NO_SUCH_OBJECT as error:
        why = f"it has no entry {request['base']} that may be read"
        raise Unusable(why) from error
    except ldap.FILTER_ERROR as error:
        raise Unusable("LDAP_FILTER is not a filter") from error
    seen = {
        kind: sum(kind.lower() in values for _, values in found)
        for kind in _attributes(request)
    }
    return {"state": "sample", "entries": len(found), "seen": seen}


if __name__ == "__main__":
    json.dump(answer_of(json.load(sys.stdin)), sys.stdout)
