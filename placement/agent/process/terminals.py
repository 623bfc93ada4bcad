"""The terminals of one Unix user on this node, and writing to them."""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

from placement.protocol.process_commands import (
    LOWEST_UID,
    NOBODY_UID,
    terminal_text,
)

DEV = Path("/dev")
FLAGS = os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
"""Never wait for a stopped terminal, never follow a link."""


def terminals_of(uid: int, dev: Path = DEV) -> Iterator[Path]:
    """Yield the pseudo terminals and consoles that a user owns."""
    places = [*dev.glob("pts/[0-9]*"), *dev.glob("tty[0-9]*")]
    for path in sorted(places):
        try:
            found = path.lstat()
        except OSError:
            continue  # closed this moment
        if found.st_uid == uid and stat.S_ISCHR(found.st_mode):
            yield path


def tell_account(name: str, text: str, dev: Path = DEV) -> int:
    """Write a text to the terminals of a person's account. Return their number.

    An account of the system, and one that is not on this node, is told nothing.
    """
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        return 0
    if uid < LOWEST_UID or uid == NOBODY_UID:
        return 0
    return write_to_user(uid, terminal_text(text), dev)


def write_to_user(uid: int, text: str, dev: Path = DEV) -> int:
    """Write a text to each terminal of a user. Return the number of terminals.

    The owner is checked again once the terminal is open, because its number may have
    passed to another user in between.
    """
    data = f"\r\n{text}\r\n".replace("\r\n", "\n").replace("\n", "\r\n").encode()
    told = 0
    for path in terminals_of(uid, dev):
        try:
            handle = os.open(path, FLAGS)
        except OSError:
            continue
        try:
            found = os.fstat(handle)
            if found.st_uid == uid and stat.S_ISCHR(found.st_mode):
                told += os.write(handle, data) > 0
        except OSError:
            continue  # closed, or too full to take it without waiting
        finally:
            os.close(handle)
    return told
