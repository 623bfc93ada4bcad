"""Names that the portal gives to another engine, such as Slurm. Pure."""

from __future__ import annotations

import re

UNIX_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,79}")
"""Unix users that cannot be mistaken for other words of a command."""
_NAME = re.compile(r"gp_(\d{1,18})")


def hold_name(reservation_pk: int) -> str:
    """Return the name of a reservation's hold.

    >>> hold_name(17)
    'gp_17'
    """
    return f"gp_{reservation_pk}"


def reservation_of(name: str) -> int | None:
    """Return the reservation of a hold by its name; None: it is not ours.

    >>> reservation_of("gp_17"), reservation_of("maintenance")
    (17, None)
    """
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None
