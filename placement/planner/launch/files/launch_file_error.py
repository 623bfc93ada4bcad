"""Values that all makers of launch files use."""

from dataclasses import dataclass
from typing import Any


class NoSuchLaunch(Exception):
    """A launcher cannot run a Plan. The text gives the reason."""


@dataclass(frozen=True, slots=True)
class RenderedFile:
    """A configuration, and notes for its reader."""

    values: dict[str, Any]
    notes: tuple[str, ...] = ()
