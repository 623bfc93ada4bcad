"""GPU Portal from a shell. Standard library only, Python 3.9 or newer."""

import sys
from pathlib import Path

__version__ = "0.2.0"


def program():
    """Return what a person types to start this client: gp, or gp.py."""
    name = Path(sys.argv[0]).name
    return "gp" if name in ("", "-c", "__main__.py", __name__) else name
