"""Read a Job's results as the Job's user.

    python -m placement.agent.storage.results_reader list FOLDER FILES BYTES [OWN NAMES]
    python -m placement.agent.storage.results_reader send FOLDER PATH OFFSET [OWN]

``list`` prints one JSON object: the files of the results folder with size and SHA-256,
and the omitted files with reasons. OWN is a script's own folder. What lies in it comes
after the results and within the same limits, except the named files. ``send`` writes
one file's bytes from an offset. Everything is opened by descriptor, folder by folder,
and no link is followed, so a name that is replaced during the walk leads nowhere else.
Only regular files are opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Collection, Iterator

MOST_ENTRIES = 10_000
MOST_DEPTH = 16
MOST_PATH = 220
MOST_LEFT_OUT = 50
TOO_MANY = f"more than {MOST_ENTRIES:,} entries: it and others were not looked at"
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Opens a real folder, never a link to one, and never waits."""
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class NotThere(Exception):
    """No such regular file in the folder."""


def _skip_none(_name: str, _mode: int) -> bool:
    return False


class FolderWalk:
    """Walks several folders, which have MOST_ENTRIES files and folders in total."""

    def __init__(self) -> None:
        self._seen = 0

    def entries(
        self, folder: str, is_skipped: Callable[[str, int], bool] = _skip_none
    ) -> Iterator[tuple[str, int, str]]:
        """Yield (path, bytes, why it is left out or "") of all that lies in a folder.

        Where the walk ends early, the last one is left out because of TOO_MANY.

        Args:
            is_skipped: whether a name with a mode, directly in the folder, is ignored.

        Raises:
            OSError: the folder itself cannot be opened, or is a link.
        """
        todo = [("", os.open(folder, FOLDER), 0)]
        while todo:
            above, handle, depth = todo.pop()
            try:
                with os.scandir(handle) as found:
                    names = sorted(entry.name for entry in found)
                for name in names:
                    path = f"{above}{name}"
                    facts = os.stat(name, dir_fd=handle, follow_symlinks=False)
                    if not above and is_skipped(name, facts.st_mode):
                        continue
                    self._seen += 1
                    if self._seen > MOST_ENTRIES:
                        for _, other, _ in todo:
                            os.close(other)
                        yield path, facts.st_size, TOO_MANY
                        return
                    if stat.S_ISDIR(facts.st_mode) and depth < MOST_DEPTH:
                        try:
                            inner = os.open(name, FOLDER, dir_fd=handle)
                        except OSError as error:
                            yield path, 0, f"cannot be opened: {error.strerror}"
                            continue
                        todo.append((f"{path}/", inner, depth + 1))
                    else:
                        yield path, facts.st_size, _why_not(path, facts.st_mode)
            finally:
                os.close(handle)


def _why_not(path: str, mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "is a link"
    if stat.S_ISDIR(mode):
        return f"lies deeper than {MOST_DEPTH} folders"
    if not stat.S_ISREG(mode):
        return "is not a regular file"
    if len(path) > MOST_PATH:
        return f"its name is longer than {MOST_PATH} characters"
    return "" if path.isprintable() else "its name cannot be printed"


def open_inside(folder: str, path: str) -> int:
    """Open a regular file of a folder; return its descriptor.

    Raises:
        NotThere: no regular file has that name, or a link is on the path.
    """
    *folders, name = path.split("/")
    handle = os.open(folder, FOLDER)
    try:
        for part in folders:
            handle = _step(handle, part, FOLDER)
        handle = _step(handle, name, FILE)
    except OSError as error:
        raise NotThere(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise NotThere(f"{path} is not a regular file")
    return handle


def _step(handle: int, name: str, flags: int) -> int:
    try:
        if name in ("", ".", ".."):
            raise OSError(0, "is no name")
        return os.open(name, flags, dir_fd=handle)
    finally:
        os.close(handle)


def listing(
    folder: str,
    most_files: int,
    most_bytes: int,
    own: str = "",
    kept: Collection[str] = (),
) -> dict[str, object]:
    """Return the files to upload in the order of names, and the omitted ones.

    Those of a script's own folder follow those of the results folder.
    """
    files: list[dict[str, object]] = []
    left_out: list[dict[str, object]] = []
    total = 0
    for path, size, why in _found(folder, own, kept):
        if not why and len(files) >= most_files:
            why = f"more than {most_files} files"
        if not why and total + size > most_bytes:
            why = f"with it they would be more than {most_bytes:,} bytes"
        if not why:
            try:
                with os.fdopen(open_result(path, folder, own), "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    read = file.tell()
                total += read
                files.append({"path": path, "size": read, "sha256": digest})
                continue
            except (NotThere, OSError) as error:
                why = f"cannot be read: {str(error)[:80]}"
        if len(left_out) < MOST_LEFT_OUT or why == TOO_MANY:
            shown = path.encode(errors="replace").decode()[:MOST_PATH]
            left_out.append({"path": shown, "size": size, "why": why[:120]})
    return {"files": files, "left_out": left_out}


def _found(
    folder: str, own: str, kept: Collection[str]
) -> Iterator[tuple[str, int, str]]:
    """Yield what lies in the results folder, then what lies in a script's own folder.

    Hidden files, compiled modules, links and the kept ones are no results. Nor are
    those whose name the results folder has.
    """
    walk = FolderWalk()
    yield from sorted(walk.entries(folder))
    if not own:
        return
    there = {*kept, *os.listdir(folder)}  # noqa: PTH208 - names that pathlib would join
    there.add(os.path.relpath(folder, own))

    def is_skipped(name: str, mode: int) -> bool:
        no_result = name in there or name.startswith((".", "__"))
        return no_result or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))

    try:
        for row in sorted(walk.entries(own, is_skipped)):
            compiled = "__pycache__" in row[0].split("/")
            if row[2] == TOO_MANY or not (row[0] in there or compiled):
                yield row
    except OSError as error:
        yield ".", 0, f"cannot be opened: {error.strerror}"


def open_result(path: str, folder: str, own: str = "") -> int:
    """Open a file of the results folder, or otherwise of a script's own folder.

    Raises:
        NotThere: no regular file has that name in either.
    """
    try:
        return open_inside(folder, path)
    except NotThere:
        if not own:
            raise
    return open_inside(own, path)


def main(arguments: list[str]) -> int:
    """List or send; 0, or 1 with one line on standard error."""
    try:
        if arguments[0] == "list":
            folder, most_files, most_bytes, *own = arguments[1:]
            left, kept = (own[0], own[1:]) if own else ("", [])
            answer = listing(folder, int(most_files), int(most_bytes), left, kept)
            sys.stdout.write(json.dumps(answer))
            return 0
        folder, path, offset, *own = arguments[1:]
        with os.fdopen(open_result(path, folder, *own), "rb") as file:
            file.seek(int(offset))
            shutil.copyfileobj(file, sys.stdout.buffer, 2**20)
        return 0
    except (NotThere, OSError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
