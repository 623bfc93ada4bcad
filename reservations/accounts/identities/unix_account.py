"""The Unix account of a person, as a provider or a directory says it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from telemetry.protocol.sentences import sentence

UNIX_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
"""As ``User.unix_user`` takes it."""
LOWEST_UID = 1000
"""Below are accounts of the system (login.defs of Debian). The nodes check it too."""
MOST_UID = 2**32 - 2
SHARED_UIDS = (65_534, 65_535)
""""nobody", and the 16 bits of "no user" (systemd.io/UIDS-GIDS)."""


@dataclass(frozen=True)
class UnixAccount:
    """What the claims say. Invalid ones have a ``fault``, and give nothing."""

    name: str = ""
    """"": they say nothing, so nothing changes."""
    uid: int = 0
    """That the account must have on every node. 0: they do not say it."""
    fault: str = ""


NO_ACCOUNT = UnixAccount()


def read_unix_account(
    values: object, numbers: object, *, needs_uid: bool
) -> UnixAccount:
    """Read the claims with the Unix user and its uid.

    Args:
        values: of the name. A text, or a list of one.
        numbers: of the uid. A number in digits, or a list of one.
        needs_uid: whether the site takes only accounts whose uid is known.

    >>> read_unix_account("ada", ["1234"], needs_uid=True)
    UnixAccount(name='ada', uid=1234, fault='')
    >>> read_unix_account("ada", None, needs_uid=True)
    UnixAccount(name='', uid=0, fault='')
    >>> read_unix_account("root", 0, needs_uid=True).fault
    'uid 0 is not that of a person. It must be 1000 to 4294967294, and not shared'
    """
    name, number = _only(values), _only(numbers)
    if name == "" or (needs_uid and number == ""):
        return NO_ACCOUNT
    if name is None or not UNIX_USER.fullmatch(name):
        shown = (name or "").encode("unicode_escape").decode()[:40]
        return UnixAccount(fault=sentence("“{name}” is no Unix user", name=shown))
    if not needs_uid:
        return UnixAccount(name)
    uid = int(number) if number and number.isascii() and number.isdigit() else -1
    if not LOWEST_UID <= uid <= MOST_UID or uid in SHARED_UIDS:
        shown = (number or "").encode("unicode_escape").decode()[:20]
        return UnixAccount(
            fault=sentence(
                "uid {uid} is not that of a person. It must be {least} to {most}, and "
                "not shared",
                uid=shown,
                least=LOWEST_UID,
                most=MOST_UID,
            )
        )
    return UnixAccount(name, uid)


def stored_account(values: Mapping[str, object] | None) -> UnixAccount:
    """Return an account that was kept as JSON. None: a release before this kept it."""
    return UnixAccount(**values) if values else NO_ACCOUNT  # type: ignore[arg-type]


def _only(values: object) -> str | None:
    """Return the one value as text. "": there is none. None: several, or no text."""
    if isinstance(values, list | tuple):
        if len(values) > 1:
            return None
        values = values[0] if values else ""
    if values is None:
        return ""
    if isinstance(values, bool) or not isinstance(values, str | int):
        return None
    return str(values)[:100].strip()
