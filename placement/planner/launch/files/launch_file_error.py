"""What the makers of launch files share."""

from dataclasses import dataclass
from typing import Any


class NoSuchLaunch(Exception):
    """A launcher that cannot run a Plan; the text says why."""


@dataclass(frozen=True, slots=True)
class RenderedFile:
    """A configuration, and what its reader should know."""

    values: dict[str, Any]
    notes: tuple[str, ...] = ()
