"""What OpenID providers and an LDAP directory have in common, and their variables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

LOOPBACK = ("127.0.0.1", "::1", "localhost")
SIGN_UP = ("off", "mapped", "all")
SignUp = Literal["off", "mapped", "all"]


@dataclass(frozen=True)
class IdentitySource:
    """A place that knows people, and what the site does with these people."""

    key: str
    """Its part of our addresses, such as `uni` in `/login/uni/`."""
    name: str
    """For the button "Sign in with ..."."""
    issuer: str
    """With the subject it makes the identity of a person."""
    groups_claim: str = field(default="groups", kw_only=True)
    sign_up: SignUp = field(default="mapped", kw_only=True)
    """Who may get an account: nobody, people whose groups are mapped, or everybody."""
    unix_user_claim: str = field(default="", kw_only=True)
    """Has the Unix user of a person. "": admins set it."""
    unix_uid_claim: str = field(default="", kw_only=True)
    """Has the uid of that user. Without it in an answer no Unix user is taken."""
    match_usernames: bool = field(default=False, kw_only=True)
    """Whether its user names are those of people whom an admin made."""

    @property
    def folds_case(self) -> bool:
        """Whether its groups are compared in small letters."""
        return False


def folded_group(value: str) -> str:
    """Return a group of a source that folds case, in the form that is compared.

    >>> folded_group(" GPU  Users ")
    'gpu users'
    """
    return " ".join(value.split()).lower()


class SettingMissing(Exception):
    """A setting is missing or invalid. The text names the variable."""


@dataclass(frozen=True)
class SourceVariables:
    """The variables of one source, which have a common prefix."""

    prefix: str
    environ: Mapping[str, str]
    read_file: Callable[[str], str]

    def value(self, name: str, default: str = "") -> str:
        """Return a variable without spaces around it."""
        return self.environ.get(self.prefix + name, "").strip() or default

    def one_of(self, name: str, choices: Iterable[str], default: str) -> str:
        """Return a variable that has one of some values.

        Raises:
            SettingMissing: it has another one.
        """
        found = self.value(name, default)
        if found not in choices:
            raise SettingMissing(
                f"{self.prefix}{name}: use one of {', '.join(choices)}"
            )
        return found

    def switch(self, name: str, *, default: str = "0") -> bool:
        """Return a variable that is 0 or 1.

        Raises:
            SettingMissing: it is something else.
        """
        return self.one_of(name, ("0", "1"), default) == "1"

    def sign_up(self) -> SignUp:
        """Return who may get an account.

        Raises:
            SettingMissing: it is none of the choices.
        """
        text = self.one_of("SIGN_UP", SIGN_UP, "mapped")
        return "off" if text == "off" else "all" if text == "all" else "mapped"

    def unix_claims(self, kind: str, username: str) -> dict[str, str]:
        """Return the claims with the Unix user of a person, as fields of a source.

        Args:
            kind: CLAIM or ATTRIBUTE, as the variables are called.
            username: the claim of the user name. A site that names only the claim of
                the uid takes the Unix user from it.
        """
        user = self.value(f"UNIX_USER_{kind}")
        uid = self.value(f"UNIX_UID_{kind}")
        wanted = user or (username if uid else "")
        return {"unix_user_claim": wanted, "unix_uid_claim": uid}

    def secret(self, name: str) -> str:
        """Return a secret from its variable, or from the file that another one names.

        Raises:
            SettingMissing: there is neither, or the file cannot be read or is empty.
        """
        if found := self.value(name):
            return found
        full = self.prefix + name
        file = self.value(f"{name}_FILE")
        if not file:
            raise SettingMissing(
                f"{full} is not set, and {full}_FILE names no file. There is no default"
            )
        try:
            found = self.read_file(file).strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingMissing(
                f"{full}_FILE: {file} cannot be read: {type(error).__name__}"
            ) from error
        if not found:
            raise SettingMissing(f"{full}_FILE: {file} is empty")
        return found
