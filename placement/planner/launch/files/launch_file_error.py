"""Values that all makers of launch files use."""

from dataclasses import dataclass
from typing import Any

from placement.planner.values.plan import Plan


class NoSuchLaunch(Exception):
    """A launcher cannot run a Plan. The text gives the reason."""


@dataclass(frozen=True, slots=True)
class RenderedFile:
    """A configuration, and notes for its reader."""

    values: dict[str, Any]
    notes: tuple[str, ...] = ()


def one_line(text: str) -> str:
    """Return a text as one line without control characters.

    It can stand in a comment of a shell script or of YAML, whose lines also end at
    U+0085, U+2028 and U+2029.

    >>> one_line("a\\u2028b: 1")
    'a b: 1'
    """
    kept = (one if one.isprintable() else " " for one in text)
    return " ".join("".join(kept).split())


def head_comment(plan: Plan) -> str:
    """Return the first comment of a file: the strategy and the model of its Plan."""
    return f"# {one_line(f'{plan.title}: {plan.model}')}"
