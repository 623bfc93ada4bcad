"""What this machine's Python can do. Looks for packages; imports none of them."""

from functools import cache
from importlib.util import find_spec


@cache
def torch_installed() -> bool:
    """Say whether torch is here (a web-only host has requirements-web.txt)."""
    return find_spec("torch") is not None
