"""The ways to sign in of the site, read from the environment.

One OpenID provider has the variables `OIDC_ISSUER`, `OIDC_CLIENT_ID` and so on. Several
are listed in `OIDC_PROVIDERS`, and each has variables with its key: `OIDC_UNI_ISSUER`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from reservations.accounts.identities.directory_settings import (
    Directory,
    read_directory,
)
from reservations.accounts.identities.identity_source import (
    LOOPBACK,
    IdentitySource,
    SettingMissing,
    SourceVariables,
)
from reservations.accounts.identities.saml_settings import KEY as SAML_KEY
from reservations.accounts.identities.saml_settings import SamlProvider, read_saml
from reservations.accounts.second_factors.rules import FactorPolicy, Policy

METHODS = ("password", "oidc", "saml", "ldap")
MOST_GRACE_DAYS = 365
SUFFIX = "/.well-known/openid-configuration"
LONGEST_ISSUER = 400
KEY = re.compile(r"[a-z][a-z0-9]{0,19}")


@dataclass(frozen=True)
class Provider(IdentitySource):
    """One OpenID provider. The issuer has no slash at the end."""

    client_id: str
    client_secret: str = field(repr=False)
    scopes: str = "openid profile email"
    username_claim: str = "preferred_username"

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
    directory: Directory | None = None
    saml: SamlProvider | None = None

    @property
    def passwords(self) -> bool:
        """Whether people may sign in with a password of the portal."""
        return "password" in self.methods

    @property
    def with_redirect(self) -> tuple[IdentitySource, ...]:
        """The identity providers, to which the sign-in page leads."""
        saml = () if self.saml is None else (self.saml,)
        return (*self.providers, *saml)

    @property
    def sources(self) -> tuple[IdentitySource, ...]:
        """The identity providers and the directory."""
        directory = () if self.directory is None else (self.directory,)
        return (*self.with_redirect, *directory)


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
        f"LOGIN: “{name}” is not a way to sign in. Use {', '.join(METHODS)}"
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
        if SAML_KEY in keys:
            problems.append(f"OIDC_PROVIDERS: “{SAML_KEY}” is the SAML provider")
            keys = tuple(key for key in keys if key != SAML_KEY)
        named = [(key, f"OIDC_{key.upper()}_") for key in keys if KEY.fullmatch(key)]
        for key, prefix in named or [("oidc", "OIDC_")]:
            try:
                providers.append(
                    _provider(key, prefix, environ, read_file, production=production)
                )
            except SettingMissing as error:
                problems.append(str(error))
        issuers = [one.issuer for one in providers]
        problems += [
            f"OIDC_{one.key.upper()}_ISSUER: another provider has the same issuer"
            for one in providers
            if issuers.count(one.issuer) > 1
        ]
    directory = None
    if "ldap" in methods:
        try:
            directory = read_directory(environ, read_file)
        except SettingMissing as error:
            problems.append(str(error))
        if directory and any(one.key == directory.key for one in providers):
            problems.append(f"OIDC_PROVIDERS: “{directory.key}” is the LDAP directory")
    saml = None
    if "saml" in methods:
        try:
            saml = read_saml(environ, read_file, production=production)
        except SettingMissing as error:
            problems.append(str(error))
        if saml and any(one.issuer == saml.issuer for one in providers):
            problems.append("SAML_ENTITY_ID: an OpenID provider has the same issuer")
    known = tuple(name for name in METHODS if name in methods)
    second_factor, wrong = _factor_policy(environ, production=production)
    return LoginSettings(
        known,
        tuple(providers),
        (*problems, *wrong),
        second_factor=second_factor,
        directory=directory,
        saml=saml,
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
    variables = SourceVariables(prefix, environ, read_file)
    value = variables.value
    issuer = value("ISSUER").removesuffix(SUFFIX).rstrip("/")
    if not issuer:
        raise SettingMissing(f"{prefix}ISSUER is not set: the address of the provider")
    _check_issuer(f"{prefix}ISSUER", issuer, production=production)
    client_id = value("CLIENT_ID")
    if not client_id:
        raise SettingMissing(f"{prefix}CLIENT_ID is not set: the provider issues it")
    scopes = value("SCOPES", "openid profile email")
    if "openid" not in scopes.split():
        raise SettingMissing(f"{prefix}SCOPES: the scope openid is missing")
    return Provider(
        key=key,
        name=value("NAME") or urlsplit(issuer).hostname or key,
        issuer=issuer,
        client_id=client_id,
        client_secret=variables.secret("CLIENT_SECRET"),
        scopes=scopes,
        username_claim=value("USERNAME_CLAIM", "preferred_username"),
        groups_claim=value("GROUPS_CLAIM", "groups"),
        **variables.unix_claims("CLAIM", value("USERNAME_CLAIM", "preferred_username")),
        sign_up=variables.sign_up(),
        match_usernames=variables.switch("MATCH_USERNAMES"),
    )


def _check_issuer(name: str, issuer: str, *, production: bool) -> None:
    try:
        parts = urlsplit(issuer)
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        raise SettingMissing(f"{name}: {issuer[:80]} is not an address") from error
    plain = parts.scheme == "http" and host in LOOPBACK and not production
    if not host or not (parts.scheme == "https" or plain):
        raise SettingMissing(f"{name}: it must begin with https:// and a host")
    if parts.query or parts.fragment or "@" in parts.netloc:
        raise SettingMissing(f"{name}: it has a query, a fragment or a user name")
    if len(issuer) > LONGEST_ISSUER or not issuer.isascii() or " " in issuer:
        raise SettingMissing(
            f"{name}: it is longer than {LONGEST_ISSUER} characters, or has other "
            "characters than an address"
        )
