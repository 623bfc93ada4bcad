"""Names that the portal gives to another engine, such as Slurm. Pure."""

from __future__ import annotations

import re

UNIX_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,79}")
"""Unix users that cannot be mistaken for other words of a command."""
SITE = re.compile(r"[0-9a-z]{4,12}")
"""The id of a portal (``SLURM_SITE``). Several portals may share a cluster."""
_JOB_NAME = re.compile(r"gp-(\d{1,15})-\d+-")
"""Of an attempt of a Job (`placement.agent.slurm.job_script.job_name`)."""
_NAME = re.compile(r"gp_([0-9a-z]{4,12})_(\d{1,18})")


def hold_name(site: str, reservation_pk: int) -> str:
    """Return the name of a reservation's hold.

    >>> hold_name("a1b2c3", 17)
    'gp_a1b2c3_17'
    """
    return f"gp_{site}_{reservation_pk}"


def reservation_of(site: str, name: str) -> int | None:
    """Return the reservation of a hold by its name; None: it is not this site's.

    >>> reservation_of("a1b2c3", "gp_a1b2c3_17"), reservation_of("a1b2c3", "gp_f00d_17")
    (17, None)
    """
    match = _NAME.fullmatch(name)
    return int(match[2]) if match and match[1] == site else None


def job_of(site: str, reservation: str, name: str) -> int | None:
    """Return the Job of the portal that a job of Slurm is, by its names.

    None: it is not in a reservation of this site, or no attempt of a Job.

    >>> job_of("a1b2c3", "gp_a1b2c3_17", "gp-119-1-0")
    119
    >>> job_of("a1b2c3", "gp_f00d_17", "gp-119-1-0") is None
    True
    """
    match = _JOB_NAME.match(name)
    ours = reservation_of(site, reservation) is not None
    return int(match[1]) if match and ours else None


def is_hold_name(name: str) -> bool:
    """Return whether this or another portal gave the name.

    >>> is_hold_name("gp_f00d_17"), is_hold_name("maintenance")
    (True, False)
    """
    return _NAME.fullmatch(name) is not None
