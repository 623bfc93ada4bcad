"""The commands of the service manager that an upgrade needs.

``Systemd`` runs them on an installed portal. The protocol is small, so that another
supervisor can take its place (tests/gpuportal/upgrade).
"""

from __future__ import annotations

import filecmp
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

WEB = "gpuportal-web"
WORKERS = ("gpuportal-ingest", "gpuportal-worker", "gpuportal-refine", "gpuportal-beat")
"""Restarted in this order. Ingest continues at its place in the streams."""
UNITS = Path("deploy/systemd")
"""The units of a release, below its folder."""
SECONDS = 300.0
"""The units give up earlier: ``TimeoutStartSec`` is 180."""


class ServiceFailed(Exception):
    """A service did not start, or the service manager refused a command."""


class ServiceManager(Protocol):
    """Starts the portal's processes from the link to the release."""

    def runs(self, service: str) -> bool:
        """Return whether a service is up, or starts."""

    def restart(self, service: str) -> None:
        """Stop and start it; return when it can work.

        Raises:
            ServiceFailed: it does not start.
        """

    def reload(self, service: str) -> None:
        """Replace its processes without a gap.

        Raises:
            ServiceFailed: the new ones do not start; the old ones go on.
        """

    def install_units(self, release: Path) -> list[str]:
        """Take the definitions of services from a release; return those that changed.

        Raises:
            ServiceFailed: they cannot be written.
        """

    def changed_units(self, release: Path) -> list[str]:
        """Return the definitions that ``install_units`` would change."""

    def last_lines(self, service: str) -> str:
        """Return the last line that a service wrote, to say why it failed."""


class Systemd:
    """The service manager of Debian and Ubuntu. Its units report when they are ready,
    so ``restart`` waits for that."""

    def __init__(self, folder: Path = Path("/etc/systemd/system")) -> None:
        self._folder = folder

    def runs(self, service: str) -> bool:
        """Return whether a service is up, or starts."""
        done = _systemctl("is-active", f"{service}.service", check=False)
        return done.strip() in ("active", "activating", "reloading")

    def restart(self, service: str) -> None:
        """Stop and start it; return when it can work."""
        # A unit that failed often would be refused.
        _systemctl("reset-failed", f"{service}.service", check=False)
        _systemctl("restart", f"{service}.service")

    def reload(self, service: str) -> None:
        """Replace its processes without a gap."""
        _systemctl("reload", f"{service}.service")

    def install_units(self, release: Path) -> list[str]:
        """Take the units of a release; return the names of those that changed."""
        changed = self.changed_units(release)
        try:
            for name in changed:
                draft = self._folder / f".{name}.draft"
                shutil.copyfile(release / UNITS / name, draft)
                draft.chmod(0o644)
                draft.replace(self._folder / name)
        except OSError as error:
            raise ServiceFailed(f"{self._folder}: {error.strerror}") from error
        if changed:
            _systemctl("daemon-reload")
        return changed

    def changed_units(self, release: Path) -> list[str]:
        """Return the names of units that differ from those of a release."""
        return [
            path.name
            for path in sorted((release / UNITS).iterdir())
            if path.suffix in (".service", ".socket", ".target", ".timer")
            and not _same(path, self._folder / path.name)
        ]

    def last_lines(self, service: str) -> str:
        """Return the last line of the journal of a service."""
        return _run(
            [*("journalctl", "-u", service, "-n", "1", "--no-pager", "-o", "cat")],
            check=False,
        ).strip()


def _same(one: Path, other: Path) -> bool:
    return other.is_file() and filecmp.cmp(one, other, shallow=False)


def _systemctl(*words: str, check: bool = True) -> str:
    return _run(["systemctl", "--no-pager", *words], check=check)


def _run(words: Sequence[str], *, check: bool = True) -> str:
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceFailed(f"{' '.join(words)}: {error}") from error
    if check and done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()
        why = said[0] if said else f"exit status {done.returncode}"
        raise ServiceFailed(f"{' '.join(words)}: {why}")
    return done.stdout
