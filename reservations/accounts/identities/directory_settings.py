"""The LDAP directory of the site, read from the environment."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from reservations.accounts.identities.identity_source import (
    LOOPBACK,
    IdentitySource,
    SettingMissing,
    SourceVariables,
)

KEY = ISSUER = "ldap"
"""The issuer of identities does not depend on the address of a server, which may
change. No OpenID provider has it, because theirs is an https address."""
PREFIX = "LDAP_"
MOST_URLS = 5
IDS = ("entryUUID", "objectGUID", "ipaUniqueID", "nsUniqueId")
"""Attributes that a directory never gives to a second person, unlike a user name."""
ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")
LOGIN_PLACE = re.compile(r"\(([A-Za-z][A-Za-z0-9-]*)=\{user\}\)")
"""The place of a user name in a filter: the whole value of an attribute."""
Tls = Literal["ldaps", "starttls", "plain"]


@dataclass(frozen=True, kw_only=True)
class Directory(IdentitySource):
    """An LDAP directory. People type its password on the portal's own page."""

    key: str = KEY
    issuer: str = ISSUER
    urls: tuple[str, ...]
    """Servers with the same content. The next is asked if one is away."""
    tls: Tls
    ca_file: str = ""
    """Certificates of the authorities. "": those of the system."""
    bind_dn: str = ""
    """The site's own account, which searches people. "": nobody's."""
    bind_password: str = field(default="", repr=False)
    user_dn: str = ""
    """People bind as this name with `{user}` replaced, without a search. "": the
    directory is searched first."""
    base: str = ""
    filter: str = "(uid={user})"
    id_attribute: str = "entryUUID"
    username_attribute: str = "uid"
    name_attribute: str = "cn"
    mail_attribute: str = "mail"
    group_base: str = ""
    """Groups below it count. "": groups are not read."""
    group_filter: str = ""
    """Finds the groups of a person. "": the attribute memberOf names them."""

    @property
    def login_attributes(self) -> tuple[str, ...]:
        """The attributes in which a typed user name is looked for."""
        return tuple(dict.fromkeys(LOGIN_PLACE.findall(self.filter)))

    @property
    def folds_case(self) -> bool:
        """Names in a directory have no case (RFC 4517, section 4.2.15)."""
        return True

    @property
    def plain_over_network(self) -> bool:
        """Whether passwords go over a network without encryption."""
        return self.tls == "plain" and not all(map(_is_loopback, self.urls))


def read_directory(
    environ: Mapping[str, str], read_file: Callable[[str], str]
) -> Directory:
    """Read the variables that begin with `LDAP_`.

    Raises:
        SettingMissing: one is missing or invalid.
    """
    variables = SourceVariables(PREFIX, environ, read_file)
    value = variables.value
    urls, tls = _servers(variables)
    user_dn, base, bind_dn = value("USER_DN"), value("BASE"), value("BIND_DN")
    if user_dn:
        _check_user_dn(user_dn)
        if bind_dn:
            raise SettingMissing(
                "LDAP_USER_DN: people bind as themselves. Remove LDAP_BIND_DN, or "
                "LDAP_USER_DN to search people first"
            )
    elif not base:
        raise SettingMissing("LDAP_BASE is not set: the entry below which people are")
    username = _attribute(variables, "USERNAME_ATTRIBUTE", "uid")
    group_base, group_filter = value("GROUP_BASE"), value("GROUP_FILTER")
    if group_filter and not group_base:
        raise SettingMissing("LDAP_GROUP_BASE is not set: the entry of the groups")
    if group_filter:
        _check_filter("LDAP_GROUP_FILTER", group_filter, "{dn}", "{user}")
    wanted = value("FILTER", f"({username}={{user}})")
    _check_filter("LDAP_FILTER", wanted, "{user}")
    if len(LOGIN_PLACE.findall(wanted)) != wanted.count("{user}"):
        raise SettingMissing(
            "LDAP_FILTER: {user} must be the whole value of an attribute: (uid={user})"
        )
    return Directory(
        name=value("NAME") or urlsplit(urls[0]).hostname or KEY,
        urls=urls,
        tls=tls,
        ca_file=_ca_file(variables, tls),
        bind_dn=bind_dn,
        bind_password=variables.secret("BIND_PASSWORD") if bind_dn else "",
        user_dn=user_dn,
        base=base,
        filter=wanted,
        id_attribute=variables.one_of("ID_ATTRIBUTE", IDS, IDS[0]),
        username_attribute=username,
        name_attribute=_attribute(variables, "NAME_ATTRIBUTE", "cn"),
        mail_attribute=_attribute(variables, "MAIL_ATTRIBUTE", "mail"),
        group_base=group_base,
        group_filter=group_filter,
        groups_claim="memberOf" if not group_filter else "LDAP_GROUP_FILTER",
        **_unix_attributes(variables, username),
        sign_up=variables.sign_up(),
        match_usernames=variables.switch("MATCH_USERNAMES"),
    )


def _servers(variables: SourceVariables) -> tuple[tuple[str, ...], Tls]:
    urls = tuple(variables.value("URL").split())
    if not urls:
        raise SettingMissing("LDAP_URL is not set: the address of the directory")
    if len(urls) > MOST_URLS:
        raise SettingMissing(f"LDAP_URL: at most {MOST_URLS} addresses")
    for url in urls:
        _check_url(url)
    schemes = {urlsplit(url).scheme for url in urls}
    if len(schemes) > 1:
        raise SettingMissing("LDAP_URL: all addresses are ldaps, or none")
    if schemes == {"ldaps"}:
        return urls, "ldaps"
    here = all(map(_is_loopback, urls))
    if variables.switch("START_TLS", default="0" if here else "1"):
        return urls, "starttls"
    if not here and not variables.switch("PLAIN_TEXT"):
        raise SettingMissing(
            "LDAP_START_TLS=0 sends passwords over the network in the open. Use "
            "ldaps://, or set LDAP_PLAIN_TEXT=1 as well to allow it"
        )
    return urls, "plain"


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        raise SettingMissing(f"LDAP_URL: {url[:80]} is not an address") from error
    if parts.scheme not in ("ldap", "ldaps") or not host or not url.isascii():
        raise SettingMissing(
            "LDAP_URL: it must begin with ldaps:// or ldap:// and a host"
        )
    if parts.path.strip("/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise SettingMissing(
            "LDAP_URL: it has more than a host and a port. LDAP_BASE has the rest"
        )


def _is_loopback(url: str) -> bool:
    return urlsplit(url).hostname in LOOPBACK


def _ca_file(variables: SourceVariables, tls: Tls) -> str:
    file = variables.value("CA_FILE")
    if not file or tls == "plain":
        return ""
    try:
        text = variables.read_file(file)
    except (OSError, UnicodeDecodeError) as error:
        raise SettingMissing(
            f"LDAP_CA_FILE: {file} cannot be read: {type(error).__name__}"
        ) from error
    if "BEGIN CERTIFICATE" not in text:
        raise SettingMissing(f"LDAP_CA_FILE: {file} has no certificate in PEM form")
    return file


def _attribute(variables: SourceVariables, name: str, default: str) -> str:
    found = variables.value(name, default)
    if not ATTRIBUTE.fullmatch(found):
        raise SettingMissing(f"LDAP_{name}: {found[:80]} is not the name of one")
    return found


def _unix_attributes(variables: SourceVariables, username: str) -> dict[str, str]:
    for name in ("UNIX_USER_ATTRIBUTE", "UNIX_UID_ATTRIBUTE"):
        if variables.value(name):
            _attribute(variables, name, "")
    return variables.unix_claims("ATTRIBUTE", username)


def _check_user_dn(text: str) -> None:
    """Require a DN in which a user name is one whole value.

    A name like `{user}@example.org` is not a DN. With it the entry would have to be
    searched after the bind, and might be that of another person.
    """
    parts = [part.strip() for part in re.split(r"(?<!\\),", text)]
    whole = [part.partition("=")[2].strip() == "{user}" for part in parts]
    if (
        whole.count(True) != 1
        or text.count("{user}") != 1
        or not all("=" in part for part in parts)
    ):
        raise SettingMissing(
            "LDAP_USER_DN: it must be a DN like uid={user},ou=people,dc=example,dc=org"
        )
    _check_places("LDAP_USER_DN", text, "{user}")


def _check_filter(name: str, text: str, *places: str) -> None:
    """Require a filter in brackets that has one of the places.

    The directory reads the rest of its syntax (RFC 4515).
    """
    if not any(place in text for place in places):
        raise SettingMissing(f"{name}: {' or '.join(places)} is missing")
    depth = 0
    for at, one in enumerate(text):
        depth += (one == "(") - (one == ")")
        if depth < 0 or (depth == 0 and at < len(text) - 1):
            break
    else:
        at = len(text)
    if depth or at < len(text):
        raise SettingMissing(f"{name}: it must be one filter in brackets")
    _check_places(name, text, *places)


def _check_places(name: str, text: str, *places: str) -> None:
    for place in places:
        text = text.replace(place, "")
    if "{" in text or "}" in text or "\0" in text:
        raise SettingMissing(f"{name}: only {' and '.join(places)} may be in braces")
