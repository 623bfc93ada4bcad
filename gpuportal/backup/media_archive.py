"""The folder of uploads, results and logs as one tar file."""

import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gpuportal.backup.backup_refusals import BackupDamaged

MEDIA = "media.tar"
"""Name of the file in a backup."""


class _FixedLength:
    """Reads as many bytes as a file had when it was opened.

    A log may be trimmed while it is read. The missing bytes are then zeros, because the
    archive already has the length.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._left = file, size

    def read(self, size: int) -> bytes:
        wanted = min(size, self._left)
        self._left -= wanted
        return self._file.read(wanted).ljust(wanted, b"\0")


def write_archive(folder: Path, archive: Path) -> int:
    """Write the files below a folder, which may change meanwhile. Return their number.

    Only folders and plain files are written, and no link is followed. A missing folder
    gives an empty archive.
    """
    count = 0
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in _files(folder):
            info = tarfile.TarInfo(str(path.relative_to(folder)))
            try:
                handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
            except FileNotFoundError:
                continue  # It was deleted meanwhile.
            with os.fdopen(handle, "rb") as file:
                about = os.fstat(file.fileno())
                info.size, info.mtime = about.st_size, about.st_mtime
                info.mode = about.st_mode & 0o777
                tar.addfile(info, _FixedLength(file, info.size))  # type: ignore[arg-type]
            count += 1
    return count


def _files(folder: Path) -> Iterator[Path]:
    for parent, names, files in os.walk(folder):
        names.sort()
        for name in sorted(files):
            path = Path(parent, name)
            if path.is_file() and not path.is_symlink():
                yield path


def read_archive(archive: Path, folder: Path) -> int:
    """Write the files of an archive below a new folder. Return their number.

    Raises:
        BackupDamaged: the archive cannot be read, or names a file outside the folder.
    """
    count = 0
    folder.mkdir(mode=0o700, parents=True)
    try:
        with tarfile.open(archive) as tar:
            for info in tar:
                target = (folder / info.name).resolve()
                if not info.isreg() or not target.is_relative_to(folder.resolve()):
                    raise BackupDamaged(f"{archive} has a file that no backup has.")
                target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                source = tar.extractfile(info)
                assert source is not None, "a plain file has contents"
                with target.open("xb") as file:
                    shutil.copyfileobj(source, file)
                target.chmod(info.mode & 0o777)
                os.utime(target, (info.mtime, info.mtime))
                count += 1
    except (tarfile.TarError, EOFError, FileExistsError) as error:
        raise BackupDamaged(f"{archive} cannot be read: {error}") from error
    return count
