"""The reasons why a backup is not made, not restored, or not accepted."""

import errno
import os
import sqlite3

from telemetry.protocol.coded_error import CodedError


class BackupNotMade(CodedError):
    """No backup could be written. Nothing of it is left."""

    code = "backup-not-made"


class BackupDamaged(CodedError):
    """A file of the backup is missing, cut short or changed."""

    code = "backup-damaged"


class BackupUnusable(CodedError):
    """The backup is complete, but this portal or this database cannot use it."""

    code = "backup-unusable"


class BackupKeyWrong(CodedError):
    """The key is invalid, or it does not open the secrets of the backup."""

    code = "backup-key-wrong"


class SiteNotEmpty(CodedError):
    """A restore would overwrite data."""

    code = "site-not-empty"


def reason_of(error: OSError | sqlite3.Error) -> str:
    """Return in words why a file cannot be read or written."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        return "the disk is full" if code == sqlite3.SQLITE_FULL else str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "the disk is full"
    return os.strerror(error.errno) if error.errno else str(error)
