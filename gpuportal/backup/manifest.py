"""The manifest of a backup: versions, checksums of the files, and figures of the
data.
"""

import hashlib
from pathlib import Path
from typing import Any

from msgspec import Struct

from gpuportal.backup.backup_refusals import BackupDamaged, BackupUnusable
from telemetry.protocol import codec

FILE = "manifest.json"
FORMAT = 1
"""Increased when an older portal can no longer read a backup."""
MOST_BYTES = 64 * 2**20
CHUNK_BYTES = 2**20


class FileSum(Struct, frozen=True):
    """Size and SHA-256 of one file."""

    bytes: int
    sha256: str


class Manifest(Struct, frozen=True):
    """The contents of a backup. Written last: a backup without it is incomplete."""

    format: int
    version: str
    """Version of the portal that made the backup."""
    made_at: str
    """Instant of the data, ISO 8601 in UTC. Ranks are computed for it."""
    vendor: str
    """``sqlite`` or ``postgresql``."""
    migrations: list[tuple[str, str]]
    """(app, name) of every migration that the database has run."""
    files: dict[str, FileSum]
    """Every other file of the backup by name."""
    facts: dict[str, Any]
    """Result of ``gpuportal.backup.facts.collect_facts`` for the data."""


def file_sum(path: Path) -> FileSum:
    """Read a file. Return its size and its checksum."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return FileSum(size, digest.hexdigest())


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write the manifest."""
    (folder / FILE).write_bytes(codec.encode(manifest))


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest and compare every file with it.

    Raises:
        BackupDamaged: the manifest or a file is missing, cut short or changed.
        BackupUnusable: a newer portal made the backup.
    """
    try:
        data = (folder / FILE).read_bytes()
    except FileNotFoundError:
        raise BackupDamaged(
            f"{folder} is not a whole backup: it has no {FILE}."
        ) from None
    except OSError as error:
        raise BackupDamaged(f"{folder / FILE}: {error.strerror}") from error
    try:
        manifest = codec.decode(Manifest, data, most_bytes=MOST_BYTES)
    except codec.Malformed as error:
        raise BackupDamaged(f"{folder / FILE} is damaged: {error}") from error
    if manifest.format > FORMAT:
        raise BackupUnusable(
            f"The backup was made by version {manifest.version} of the portal, which "
            "is newer than this one. Upgrade the portal first."
        )
    for name, wanted in manifest.files.items():
        path = folder / name
        if Path(name).name != name:
            raise BackupDamaged(f"{folder / FILE} names a file outside the backup.")
        try:
            found = file_sum(path)
        except FileNotFoundError:
            raise BackupDamaged(f"{path} is missing.") from None
        except OSError as error:
            raise BackupDamaged(f"{path}: {error.strerror}") from error
        if found.bytes != wanted.bytes:
            raise BackupDamaged(
                f"{path} has {found.bytes} bytes, not {wanted.bytes}: it was cut short "
                "or changed."
            )
        if found != wanted:
            raise BackupDamaged(f"{path} was changed: its SHA-256 is another one.")
    return manifest
