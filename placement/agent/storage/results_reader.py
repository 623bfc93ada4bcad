"""Read a Job's results folder as the Job's user.

    python -m placement.agent.storage.results_reader collect WORK RESULTS [NAME ...]
    python -m placement.agent.storage.results_reader list FOLDER MOST_FILES MOST_BYTES
    python -m placement.agent.storage.results_reader send FOLDER PATH OFFSET

``collect`` moves what a script wrote to its own folder to the results folder in it,
except the named files. ``list`` prints one JSON object: the files with size and
SHA-256, and the omitted files with reasons. ``send`` writes one file's bytes from an
offset. Everything is opened by descriptor, folder by folder, and no link is followed,
so a name that is replaced during the walk leads nowhere else. Only regular files are
opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import sys
from collections.abc import Collection, Iterator

MOST_ENTRIES = 10_000
MOST_DEPTH = 16
MOST_PATH = 220
MOST_LEFT_OUT = 50
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""Opens a real folder, never a link to one, and never waits."""
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class NotThere(Exception):
    """No such regular file in the folder."""


def entries(folder: str) -> Iterator[tuple[str, int, str]]:
    """Yield (path, bytes, why it is left out or "") of all that lies in a folder.

    Raises:
        OSError: the folder itself cannot be opened, or is a link.
    """
    seen = 0
    todo = [("", os.open(folder, FOLDER), 0)]
    while todo:
        above, handle, depth = todo.pop()
        try:
            with os.scandir(handle) as found:
                names = sorted(entry.name for entry in found)
            for name in names:
                seen += 1
                if seen > MOST_ENTRIES:
                    for _, other, _ in todo:
                        os.close(other)
                    return
                path = f"{above}{name}"
                facts = os.stat(name, dir_fd=handle, follow_symlinks=False)
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


def listing(folder: str, most_files: int, most_bytes: int) -> dict[str, object]:
    """Return the files to upload in the order of names, and the omitted ones."""
    files: list[dict[str, object]] = []
    left_out: list[dict[str, object]] = []
    total = 0
    for path, size, why in sorted(entries(folder)):
        if not why and len(files) >= most_files:
            why = f"more than {most_files} files"
        if not why and total + size > most_bytes:
            why = f"with it they would be more than {most_bytes:,} bytes"
        if not why:
            try:
                with os.fdopen(open_inside(folder, path), "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                    read = file.tell()
                total += read
                files.append({"path": path, "size": read, "sha256": digest})
                continue
            except (NotThere, OSError) as error:
                why = f"cannot be read: {str(error)[:80]}"
        if len(left_out) < MOST_LEFT_OUT:
            shown = path.encode(errors="replace").decode()[:MOST_PATH]
            left_out.append({"path": shown, "size": size, "why": why[:120]})
    return {"files": files, "left_out": left_out}


def collect(work: str, results: str, kept: Collection[str]) -> list[str]:
    """Move files and folders of a Job's own folder to its results. Return their names.

    Hidden ones, links and the kept ones stay. So do those whose name the results have
    already.
    """
    moved = []
    handle = os.open(work, FOLDER)
    try:
        place = os.open(results, FOLDER, dir_fd=handle)
        try:
            # Of open folders, which pathlib does not list.
            there = set(os.listdir(place))  # noqa: PTH208
            for name in sorted(os.listdir(handle)):  # noqa: PTH208
                if name in there or name in kept or name.startswith((".", "__")):
                    continue
                mode = os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
                if name == results or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    continue
                os.rename(name, name, src_dir_fd=handle, dst_dir_fd=place)
                moved.append(name)
        finally:
            os.close(place)
    finally:
        os.close(handle)
    return moved


def main(arguments: list[str]) -> int:
    """Collect, list or send; 0, or 1 with one line on standard error."""
    try:
        if arguments[0] == "collect":
            work, results, *kept = arguments[1:]
            collect(work, results, kept)
            return 0
        if arguments[0] == "list":
            folder, most_files, most_bytes = arguments[1:]
            answer = listing(folder, int(most_files), int(most_bytes))
            sys.stdout.write(json.dumps(answer))
            return 0
        folder, path, offset = arguments[1:]
        with os.fdopen(open_inside(folder, path), "rb") as file:
            file.seek(int(offset))
            shutil.copyfileobj(file, sys.stdout.buffer, 2**20)
        return 0
    except (NotThere, OSError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
