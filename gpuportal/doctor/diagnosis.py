"""The result of one check, and how a terminal and a program get the results."""

import json
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

EXIT_WELL = 0
EXIT_PROBLEMS = 1
EXIT_CANNOT_RUN = 2


class CheckState(StrEnum):
    """The result of a check."""

    OK = "ok"
    NOTE = "note"
    """Not in use here, or not known. It is no problem."""
    PROBLEM = "problem"


class Diagnosis(Struct, frozen=True):
    """One check with its result."""

    check: str
    """A word or two: `broker`."""
    state: CheckState
    fact: str
    fix: str = ""
    """The remedy of a problem."""


def well(check: str, fact: str) -> Diagnosis:
    """Return a check that found nothing wrong."""
    return Diagnosis(check, CheckState.OK, fact)


def note(check: str, fact: str) -> Diagnosis:
    """Return a check of a thing that is not in use or not known."""
    return Diagnosis(check, CheckState.NOTE, fact)


def problem(check: str, fact: str, fix: str) -> Diagnosis:
    """Return a check that found a problem."""
    return Diagnosis(check, CheckState.PROBLEM, fact, fix)


def exit_status(found: Iterable[Diagnosis]) -> int:
    """Return 1 if one check found a problem, otherwise 0."""
    states = {one.state for one in found}
    return EXIT_PROBLEMS if CheckState.PROBLEM in states else EXIT_WELL


def report_lines(found: Iterable[Diagnosis]) -> list[str]:
    """Return one line for each check.

    >>> report_lines([problem("disk", "full", "Delete files.")])
    ['problem  disk: full. Fix: Delete files.']
    """
    return [_line(one) for one in found]


def _line(one: Diagnosis) -> str:
    fact = " ".join(one.fact.split()).rstrip(".")
    fix = f" Fix: {' '.join(one.fix.split())}" if one.fix else ""
    return f"{one.state:<8} {one.check}: {fact}.{fix}"


def report_json(found: Iterable[Diagnosis]) -> str:
    """Return the checks as a JSON array of objects: check, state, fact and fix."""
    rows = [
        {"check": one.check, "state": one.state, "fact": one.fact, "fix": one.fix}
        for one in found
    ]
    return json.dumps(rows, indent=1, ensure_ascii=False)
