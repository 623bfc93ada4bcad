"""The abilities of this machine's Python. Looks for packages; imports none of them."""

from functools import cache
from importlib.util import find_spec


@cache
def torch_installed() -> bool:
    """Return whether torch is installed (a web-only host has requirements-web.txt)."""
    return find_spec("torch") is not None
