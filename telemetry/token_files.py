"""Where a node keeps its enrolment token and its short tokens."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import NamedTuple

from telemetry.protocol.node_token import ShortToken, read_short, start_of


class TokenFiles(NamedTuple):
    """Where a node keeps its tokens."""

    enrolment: Path

    @property
    def short(self) -> Path:
        """The short token that is shown."""
        return self.enrolment.with_name(f"{self.enrolment.name}.short")

    @property
    def draft(self) -> Path:
        """The next short token, until the portal has accepted it."""
        return self.enrolment.with_name(f"{self.enrolment.name}.next")

    @property
    def aside(self) -> Path:
        """The last short token, while the portal is of a release without them."""
        return self.enrolment.with_name(f"{self.enrolment.name}.aside")

    def secret_files(self) -> tuple[Path, ...]:
        """Return every file that may hold a token."""
        return (self.enrolment, self.short, self.draft, self.aside)

    def shown(self) -> Path:
        """Return the file of the token that the node shows now.

        Raises:
            OSError: the enrolment token cannot be read.
        """
        enrolment = self.enrolment.read_text().strip()
        return self.enrolment if _read(self.short, enrolment) is None else self.short

    def shown_token(self) -> str:
        """Return the token that the node shows now. It changes while a Job runs.

        Raises:
            OSError: the enrolment token cannot be read.
        """
        enrolment = self.enrolment.read_text().strip()
        short = _read(self.short, enrolment)
        return short.text if short else enrolment

    def current(self, enrolment: str) -> ShortToken | None:
        """Return the short token of an enrolment; None: no token is stored."""
        return _read(self.short, enrolment)

    def last(self, enrolment: str) -> ShortToken | None:
        """Return the newest short token, shown or set aside."""
        return _read(self.short, enrolment) or _read(self.aside, enrolment)

    def next(self, enrolment: str) -> ShortToken:
        """Return the short token to ask for. It is the same until it is accepted.

        Raises:
            OSError: it cannot be written, so it must not be asked for.
        """
        last = self.last(enrolment)
        number = 1 + (last.number if last else 0)
        drafted = _read(self.draft, enrolment)
        if drafted is not None and drafted.number == number:
            return drafted
        text = f"gpn1.{start_of(enrolment)}.{number}.{secrets.token_urlsafe(32)}"
        self.draft.unlink(missing_ok=True)
        handle = os.open(self.draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        return ShortToken(start_of(enrolment), number, text)

    def accept(self) -> None:
        """Show the token that was asked for from now on."""
        os.utime(self.draft)
        self.draft.replace(self.short)
        self.aside.unlink(missing_ok=True)

    def set_aside(self) -> None:
        """Show the enrolment token again, and keep the number."""
        if self.short.exists():
            self.short.replace(self.aside)

    def age_seconds(self, now: float) -> float | None:
        """Return the age of the short token by this machine's clock; None: there is
        none."""
        try:
            return now - self.short.stat().st_mtime
        except OSError:
            return None


def _read(path: Path, enrolment: str) -> ShortToken | None:
    try:
        found = read_short(path.read_text())
    except (OSError, UnicodeDecodeError):
        return None
    return found if found and found.enrolment == start_of(enrolment) else None
