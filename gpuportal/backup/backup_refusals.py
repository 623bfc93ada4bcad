"""The reasons why a backup is not made, not restored, or not accepted."""

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
