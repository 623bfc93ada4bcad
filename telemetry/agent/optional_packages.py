"""Optional packages of a node worker's environment, reported with its roster.

They are looked up and never imported, so the sampling child stays small.
"""

from importlib.util import find_spec

KNOWN = ("deepspeed",)


def installed() -> tuple[str, ...]:
    """Return those of KNOWN that Jobs of ready recipes can import here."""
    return tuple(name for name in KNOWN if find_spec(name) is not None)
