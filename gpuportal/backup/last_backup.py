"""The times of the last backup and of the last verification."""

import time
from pathlib import Path

from django.conf import settings
from django.utils.translation import gettext
from msgspec import Struct
from msgspec.structs import replace

from telemetry.protocol import codec
from telemetry.protocol.units import format_duration

LATE_SECONDS = 36 * 3600.0
"""A nightly backup that is older has failed at least once."""


class LastBackup(Struct, frozen=True):
    """The record of the last backup. Times are Unix seconds; None: never."""

    made_at: float | None = None
    verified_at: float | None = None
    failure: str = ""
    """Why the last attempt failed; empty if it did not."""


def _file() -> Path:
    return Path(settings.VAR_DIR) / "backup.json"


def read_last() -> LastBackup:
    """Read the record. A file that cannot be read counts as never."""
    try:
        return codec.decode(LastBackup, _file().read_bytes())
    except (OSError, codec.Malformed):
        return LastBackup()


def trouble() -> str:
    """Return one sentence if the operator must look after the backups, otherwise "".

    A site that never made a backup with the command may use another method, so it gets
    no sentence.
    """
    last = read_last()
    if last.failure:
        return gettext("The last backup failed: %(why)s") % {"why": last.failure}
    if last.made_at is None or time.time() - last.made_at <= LATE_SECONDS:
        return ""
    age = format_duration(time.time() - last.made_at)
    return gettext(
        "The last backup is too old: it was made %(age)s ago. Run: %(command)s"
    ) % {"age": age, "command": _command()}


def summary() -> str:
    """Return when the last backup was made and verified, for the operator's page."""
    last, now = read_last(), time.time()
    if last.made_at is None:
        words = gettext("No backup was made with “%(command)s” yet.")
        return words % {"command": _command()}
    made = format_duration(now - last.made_at)
    if last.verified_at is None:
        return gettext("The last backup was made %(made)s ago. None was verified.") % {
            "made": made
        }
    return gettext(
        "The last backup was made %(made)s ago. One was last verified %(verified)s ago."
    ) % {"made": made, "verified": format_duration(now - last.verified_at)}


def _command() -> str:
    return f"{settings.MANAGE_COMMAND} backup"


def note_made(*, verified: bool) -> None:
    """Record that a backup was made now, and whether it was verified too."""
    now = time.time()
    last = replace(read_last(), made_at=now, failure="")
    _write(replace(last, verified_at=now) if verified else last)


def note_verified() -> None:
    """Record that a backup was verified now."""
    _write(replace(read_last(), verified_at=time.time(), failure=""))


def note_failure(why: str) -> None:
    """Record why a backup was not made or is damaged."""
    _write(replace(read_last(), failure=why[:500]))


def _write(last: LastBackup) -> None:
    draft = _file().with_suffix(".draft")
    draft.write_bytes(codec.encode(last))
    draft.replace(_file())
