"""Whether ``manage.py portal`` runs people's own scripts, and as which Unix users.

Root gives each person a Unix user id of their own, if other users can reach the code,
Python and the folders of jobs. Otherwise scripts run as the user who started the portal
and may do all that this user may. That user is asked once, and the answer is kept in
``var/own-scripts``.
"""

import os
import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path


class OwnScripts(StrEnum):
    """How people's own scripts run on this machine."""

    OWN_IDS = "own-ids"
    """Each person's scripts run as a separate Unix user id."""
    SHARED = "shared"
    """All scripts run as the user who started the portal."""
    OFF = "off"
    """No scripts run, only ready recipes."""


VARIABLES = {
    OwnScripts.OWN_IDS: {"GPUPORTAL_OWN_IDS": "1"},
    OwnScripts.SHARED: {"ALLOW_UNISOLATED_SCRIPTS": "1"},
    OwnScripts.OFF: {},
}
"""Environment variables of the portal's processes."""
ANSWERS = ("ask", "yes", "no")
QUESTION = (
    "Students' own scripts would run as {user}, with all rights of that user. "
    "Allow them? [y/N] "
)
HOW = "make run ARGS='--own-scripts yes'"


def closed_folder(paths: Sequence[Path]) -> Path | None:
    """Return the first folder that other Unix users cannot enter; None if they can
    enter all.
    """
    for path in paths:
        whole = path.resolve()
        for folder in (whole, *whole.parents):
            if folder.is_dir() and not folder.stat().st_mode & 0o001:
                return folder
    return None


def choice(
    said: str,
    *,
    needed: Sequence[Path],
    kept: Path,
    ask: Callable[[str], str] | None,
    user: str,
) -> tuple[OwnScripts, str]:
    """Return how scripts run, and one line for the terminal.

    Args:
        said: one of ``ANSWERS``.
        needed: folders that a Job of another Unix user has to enter.
        kept: the file with an earlier answer. A new answer is written to it.
        ask: shows a question and returns the typed answer; None: there is no terminal.
        user: the user who runs the portal.
    """
    if said == "no":
        _keep(kept, "no")
        return OwnScripts.OFF, "own scripts: off"
    hint = ""
    if os.geteuid() == 0:
        closed = closed_folder(needed)
        if closed is None:
            return (
                OwnScripts.OWN_IDS,
                "own scripts: on, each person's under a Unix user id of its own",
            )
        hint = f"; to isolate them, open the way for other users: chmod o+x {closed}"
    answer = "yes" if said == "yes" else _earlier(kept)
    if not answer and ask is not None:
        typed = ask(QUESTION.format(user=user)).strip().lower()
        answer = "yes" if typed in ("y", "yes") else "no"
    if answer:
        _keep(kept, answer)
    if answer == "yes":
        line = f"own scripts: on, as {user}, without isolation{hint}"
        return OwnScripts.SHARED, line
    return OwnScripts.OFF, f"own scripts: off; to allow them as {user}: {HOW}{hint}"


def _earlier(kept: Path) -> str:
    try:
        answer = kept.read_text().strip()
    except OSError:
        return ""
    return answer if answer in ("yes", "no") else ""


def _keep(kept: Path, answer: str) -> None:
    kept.write_text(f"{answer}\n")


def at_terminal() -> Callable[[str], str] | None:
    """Return the function that asks at the terminal; None if there is no terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return None

    def ask(question: str) -> str:
        try:
            return input(question)
        except EOFError:
            return ""

    return ask
