"""The identity providers of the site, read from the environment.

One provider has the variables `OIDC_ISSUER`, `OIDC_CLIENT_ID` and so on. Several are
listed in `OIDC_PROVIDERS`, and each has variables with its key: `OIDC_UNI_ISSUER`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from reservations.accounts.second_factors.rules import FactorPolicy, Policy

METHODS = ("password", "oidc")
MOST_GRACE_DAYS = 365
SUFFIX = "/.well-known/openid-configuration"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
LONGEST_ISSUER = 400
KEY = re.compile(r"[a-z][a-z0-9]{0,19}")
SIGN_UP = ("off", "mapped", "all")
SignUp = Literal["off", "mapped", "all"]


@dataclass(frozen=True)
class Provider:
    """One OpenID provider, and what the site does with its people."""

    key: str
    """Its part of our addresses, such as `uni` in `/login/uni/`."""
    name: str
    """For the button "Sign in with ..."."""
    issuer: str
    """Without a slash at the end."""
    client_id: str
    client_secret: str = field(repr=False)
    scopes: str = "openid profile email"
    username_claim: str = "preferred_username"
    groups_claim: str = "groups"
    sign_up: SignUp = "mapped"
    """Who may get an account: nobody, people whose groups are mapped, or everybody."""
    match_usernames: bool = False
    """Whether its user names are those of people whom an admin made."""

    @property
    def discovery_url(self) -> str:
        """The address of its configuration (OpenID Connect Discovery, section 4)."""
        return self.issuer + SUFFIX


@dataclass(frozen=True)
class LoginSettings:
    """The ways to sign in, and what is wrong with their settings."""

    methods: tuple[str, ...]
    providers: tuple[Provider, ...]
    problems: tuple[str, ...]
    """Each is a sentence that names the variable."""
    second_factor: FactorPolicy = field(default_factory=FactorPolicy)

    @property
    def passwords(self) -> bool:
        """Whether people may sign in with a password."""
        return "password" in self.methods


class _Missing(Exception):
    """A setting is missing or invalid."""


def read_login_settings(
    environ: Mapping[str, str],
    read_file: Callable[[str], str],
    *,
    production: bool,
) -> LoginSettings:
    """Read all settings of logins. Providers with a problem are left out.

    Args:
        environ: the environment of the process.
        read_file: returns the text of a file that holds a secret. It raises OSError.
        production: refuses plain http to this machine.
    """
    methods = _words(environ.get("LOGIN", "")) or ("password",)
    problems = [
        f"LOGIN: “{name}” is not a way to sign in. Use {' or '.join(METHODS)}"
        for name in methods
        if name not in METHODS
    ]
    providers = []
    if "oidc" in methods:
        keys = _words(environ.get("OIDC_PROVIDERS", ""))
        problems += [
            f"OIDC_PROVIDERS: “{key}” is not a key. Use up to 20 small letters and "
            "digits, a letter first"
            for key in keys
            if not KEY.fullmatch(key)
        ]
        named = [(key, f"OIDC_{key.upper()}_") for key in keys if KEY.fullmatch(key)]
        for key, prefix in named or [("oidc", "OIDC_")]:
            try:
                providers.append(
                    _provider(key, prefix, environ, read_file, production=production)
                )
            except _Missing as error:
                problems.append(str(error))
        issuers = [one.issuer for one in providers]
        problems += [
            f"OIDC_{one.key.upper()}_ISSUER: another provider has the same issuer"
            for one in providers
            if issuers.count(one.issuer) > 1
        ]
    known = tuple(name for name in METHODS if name in methods)
    second_factor, wrong = _factor_policy(environ, production=production)
    return LoginSettings(
        known, tuple(providers), (*problems, *wrong), second_factor=second_factor
    )


def _factor_policy(
    environ: Mapping[str, str], *, production: bool
) -> tuple[FactorPolicy, list[str]]:
    """Return what the site says about second factors, and its problems."""
    problems = []
    default: Policy = "required" if production else "recommended"
    operators: Policy = default
    asked = environ.get("SECOND_FACTOR", "").strip()
    if asked == "off":
        operators = "off"
    elif asked == "recommended":
        operators = "recommended"
    elif asked == "required":
        operators = "required"
    elif asked:
        problems.append("SECOND_FACTOR: use one of off, recommended, required")
    days = environ.get("SECOND_FACTOR_GRACE_DAYS", "").strip() or "14"
    if not (days.isascii() and days.isdigit() and int(days[:9]) <= MOST_GRACE_DAYS):
        problems.append(f"SECOND_FACTOR_GRACE_DAYS: use 0 to {MOST_GRACE_DAYS} days")
        days = "14"
    after = environ.get("SECOND_FACTOR_AFTER_PROVIDER", "").strip() or "0"
    if after not in ("0", "1"):
        problems.append("SECOND_FACTOR_AFTER_PROVIDER: use 0 or 1")
    policy = FactorPolicy(operators, int(days), after_providers=after == "1")
    return policy, problems


def _words(text: str) -> tuple[str, ...]:
    found = (word.strip() for word in text.split(","))
    return tuple(dict.fromkeys(word for word in found if word))


def _provider(
    key: str,
    prefix: str,
    environ: Mapping[str, str],
    read_file: Callable[[str], str],
    *,
    production: bool,
) -> Provider:
    def value(name: str, default: str = "") -> str:
        return environ.get(prefix + name, "").strip() or default

    def one_of(name: str, choices: Iterable[str], default: str) -> str:
        found = value(name, default)
        if found not in choices:
            raise _Missing(f"{prefix}{name}: use one of {', '.join(choices)}")
        return found

    issuer = value("ISSUER").removesuffix(SUFFIX).rstrip("/")
    if not issuer:
        raise _Missing(f"{prefix}ISSUER is not set: the address of the provider")
    _check_issuer(f"{prefix}ISSUER", issuer, production=production)
    client_id = value("CLIENT_ID")
    if not client_id:
        raise _Missing(f"{prefix}CLIENT_ID is not set: the provider issues it")
    scopes = value("SCOPES", "openid profile email")
    if "openid" not in scopes.split():
        raise _Missing(f"{prefix}SCOPES: the scope openid is missing")
    return Provider(
        key=key,
        name=value("NAME") or urlsplit(issuer).hostname or key,
        issuer=issuer,
        client_id=client_id,
        client_secret=_secret(prefix, value, read_file),
        scopes=scopes,
        username_claim=value("USERNAME_CLAIM", "preferred_username"),
        groups_claim=value("GROUPS_CLAIM", "groups"),
        sign_up=_sign_up(one_of("SIGN_UP", SIGN_UP, "mapped")),
        match_usernames=one_of("MATCH_USERNAMES", ("0", "1"), "0") == "1",
    )


def _sign_up(text: str) -> SignUp:
    return "off" if text == "off" else "all" if text == "all" else "mapped"


def _secret(
    prefix: str, value: Callable[[str], str], read_file: Callable[[str], str]
) -> str:
    if found := value("CLIENT_SECRET"):
        return found
    file = value("CLIENT_SECRET_FILE")
    if not file:
        raise _Missing(
            f"{prefix}CLIENT_SECRET is not set, and {prefix}CLIENT_SECRET_FILE names "
            "no file. There is no default"
        )
    try:
        found = read_file(file).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _Missing(
            f"{prefix}CLIENT_SECRET_FILE: {file} cannot be read: {type(error).__name__}"
        ) from error
    if not found:
        raise _Missing(f"{prefix}CLIENT_SECRET_FILE: {file} is empty")
    return found


def _check_issuer(name: str, issuer: str, *, production: bool) -> None:
    try:
        parts = urlsplit(issuer)
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        raise _Missing(f"{name}: {issuer[:80]} is not an address") from error
    plain = parts.scheme == "http" and host in LOOPBACK and not production
    if not host or not (parts.scheme == "https" or plain):
        raise _Missing(f"{name}: it must begin with https:// and a host")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise _Missing(f"{name}: it has a query, a fragment or a user name")
    if len(issuer) > LONGEST_ISSUER or not issuer.isascii() or " " in issuer:
        raise _Missing(
            f"{name}: it is longer than {LONGEST_ISSUER} characters, or has other "
            "characters than an address"
        )
