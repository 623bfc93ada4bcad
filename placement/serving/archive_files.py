"""Extract the files of an uploaded archive in a limited child process.

The child (``planner/sandbox/archive.py``) only sends names and bytes. This process
writes them, under its own names, within limits.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

from django.conf import settings

from placement.planner.sandbox.archive import CHUNK_BYTES, MOST_BYTES
from placement.planner.values.errors import SpecInvalid
from placement.planner.values.onnx_external_data import MOST_PARTS, checked_name
from telemetry.protocol.sentences import sentence

UNPACK_SECONDS = 90.0
MOST_LINE_BYTES = 4096
ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz")


def is_archive(name: str) -> bool:
    """Whether a file is an archive by its name. Its content is checked later."""
    return name.lower().endswith(ENDINGS)


def unpack(archive: Path, folder: Path) -> dict[str, Path]:
    """Write an archive's files into a folder as 0, 1, 2 ... Return them by name.

    Raises:
        SpecInvalid: with the problem of the archive.
    """
    with tempfile.TemporaryFile() as words:
        child = subprocess.Popen(
            [sys.executable, "-m", "placement.planner.sandbox.archive", str(archive)],
            cwd=settings.BASE_DIR,
            env={"PATH": os.defpath, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=words,
            start_new_session=True,
        )
        watch = threading.Timer(UNPACK_SECONDS, child.kill)
        watch.start()
        try:
            assert child.stdout is not None
            with child.stdout:
                found, whole = _written(child.stdout, folder)
        finally:
            watch.cancel()
            child.kill()
            child.wait()
        if not whole:
            raise SpecInvalid({"upload": _child_error(words)})
    return found


def _written(pipe: IO[bytes], folder: Path) -> tuple[dict[str, Path], bool]:
    """Return the bytes from the pipe, and whether its end was reached."""
    found: dict[str, Path] = {}
    total = 0
    while line := pipe.readline(MOST_LINE_BYTES):
        told = json.loads(line)
        if "end" in told:
            return found, told["end"] == len(found)
        name, left = checked_name(told["name"]), int(told["size"])
        total += left
        if len(found) >= MOST_PARTS or total > MOST_BYTES or name in found:
            return found, False
        path = folder / str(len(found))
        with path.open("xb") as file:
            while left:
                piece = pipe.read(min(left, CHUNK_BYTES))
                if not piece:
                    return found, False
                file.write(piece)
                left -= len(piece)
        found[name] = path
    return found, False


def _child_error(words: IO[bytes]) -> str:
    words.seek(0)
    try:
        return str(json.loads(words.read(MOST_LINE_BYTES))["detail"])[:400]
    except (ValueError, KeyError, TypeError):
        return sentence("the archive needs too much time or memory to be read")
