"""A checkpoint folder as one stream of bytes and back, as the Job's own user.

    python -m placement.agent.storage.checkpoint_archive pack FOLDER MOST_BYTES     tar
    to stdout python -m placement.agent.storage.checkpoint_archive unpack FOLDER
     tar from stdin

Regular files only, no link is followed, out or in. A file that is there already stays:
the parts of several nodes are unpacked into one folder, the first node's first.
"""

from __future__ import annotations

import errno
import os
import sys
import tarfile
from pathlib import Path, PurePosixPath

from placement.agent.storage.results_reader import FILE, FolderWalk

DONE, NONE, TOO_LARGE, UNSAFE, NO_ROOM = 0, 3, 4, 5, 6
TAR_BYTES = 4096
"""Most bytes of a file's head and padding, in addition to its content."""


def pack(folder: str, most_bytes: int) -> int:
    """Write what lies in a folder; NONE or TOO_LARGE, with its size, without a byte."""
    try:
        walk = FolderWalk().entries(folder)
        found = [(path, size) for path, size, why in walk if not why]
    except OSError:
        return NONE
    if not found:
        return NONE
    total = sum(size + TAR_BYTES for _, size in found)
    if total > most_bytes:
        sys.stderr.write(str(sum(size for _, size in found)))
        return TOO_LARGE
    with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
        for path, _ in sorted(found):
            handle = os.open(f"{folder}/{path}", FILE)
            with os.fdopen(handle, "rb") as file:
                head = tarfile.TarInfo(path)
                head.size = os.fstat(file.fileno()).st_size
                archive.addfile(head, file)
    return DONE


def unpack(folder: str) -> int:
    """Unpack the stream into a folder; UNSAFE if a name leads out of it."""
    root = Path(folder)
    root.mkdir(mode=0o700, exist_ok=True)
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|") as archive:
        for head in archive:
            name = PurePosixPath(head.name)
            if not head.isreg() or name.is_absolute() or ".." in name.parts:
                return UNSAFE
            target = root / name
            target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            body = archive.extractfile(head)
            assert body is not None  # it is a regular file
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            try:
                handle = os.open(target, flags, 0o600)
            except FileExistsError:
                continue
            with os.fdopen(handle, "wb") as file:
                while piece := body.read(2**20):
                    file.write(piece)
    return DONE


def main(argv: list[str]) -> int:
    """Pack or unpack one folder."""
    try:
        if argv[1:2] == ["pack"] and len(argv) == 4:
            return pack(argv[2], int(argv[3]))
        if argv[1:2] == ["unpack"] and len(argv) == 3:
            return unpack(argv[2])
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        sys.stderr.write(os.strerror(error.errno))
        return NO_ROOM
    sys.stderr.write("usage: packing pack FOLDER MOST_BYTES | unpack FOLDER\n")
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv))
