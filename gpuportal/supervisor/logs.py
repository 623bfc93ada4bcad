"""Log files of bounded size, and their warnings on the terminal.

Processes write directly into their file (opened for append), so no log depends on the
supervisor. It only follows, cuts and repeats them.
"""

import re
import time
from collections.abc import Callable
from pathlib import Path

LOG_MAX_BYTES = 5 * 2**20
READ_MAX_BYTES = 64 * 2**10
LINE_MAX = 240
# Most lines of one process that reach the terminal in one span.
SHOWN_MAX = 10
SPAN_SECONDS = 30.0
_LOUD = re.compile(r"\b(WARNING|ERROR|CRITICAL|Traceback)\b")
# Known and harmless: Celery's advice against root, its banner, Valkey's advice on a
# kernel setting that only matters to a server that saves.
_QUIET = re.compile(
    r"SecurityWarning|superuser privileges|logfile ->|Memory overcommit"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class LogFile:
    """One process's log. It is cut when it is long, and its warnings are repeated."""

    def __init__(self, name: str, path: Path, say: Callable[[str], None]) -> None:
        self.name = name
        self.path = path
        self._say = say
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        self._offset = path.stat().st_size
        self._rest = b""
        self._span_began = 0.0
        self._shown = 0

    def repeat_warnings(self) -> None:
        """Repeat warnings since the last call. Cut the file when it is long."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self._offset:
            self._offset = 0
        if size > self._offset:
            with self.path.open("rb") as file:
                file.seek(max(self._offset, size - READ_MAX_BYTES))
                fresh = self._rest + file.read(READ_MAX_BYTES)
                self._offset = file.tell()
            *lines, self._rest = fresh.split(b"\n")
            self._rest = self._rest[-READ_MAX_BYTES:]
            for line in lines:
                self._repeat(line.decode(errors="replace"))
        if size > LOG_MAX_BYTES:
            self._truncate()

    def last_lines(self, count: int = 12) -> list[str]:
        """Return the end of the log, safe for a terminal."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(max(0, self.path.stat().st_size - READ_MAX_BYTES))
            text = file.read().decode(errors="replace")
        return [clean(line) for line in text.splitlines()[-count:]]

    def _repeat(self, line: str) -> None:
        if not _LOUD.search(line[:200]) or _QUIET.search(line):
            return
        now = time.monotonic()
        if now - self._span_began > SPAN_SECONDS:
            self._span_began, self._shown = now, 0
        self._shown += 1
        if self._shown <= SHOWN_MAX:
            self._say(f"{self.name}: {clean(line)}")
        elif self._shown == SHOWN_MAX + 1:
            self._say(f"{self.name}: and more, see {self.path}")

    def _truncate(self) -> None:
        """Keep the old text as ``.1`` and empty the file under its writers.

        A rename would not do: the writers keep their descriptor. Lines written
        between the copy and the cut are lost.
        """
        self.path.with_suffix(".log.1").write_bytes(self.path.read_bytes())
        with self.path.open("r+b") as file:
            file.truncate(0)
        self._offset = 0


def clean(line: str) -> str:
    """Return a line without control characters, cut to a reasonable length."""
    return _CONTROL.sub("", line)[:LINE_MAX]
