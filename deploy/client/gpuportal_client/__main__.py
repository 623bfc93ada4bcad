"""Starts the client by its folder, or by ``python3 -m gpuportal_client``."""

import sys
from pathlib import Path

if not __package__:
    # Started by its folder. Its modules must not be found as top-level modules.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from gpuportal_client.command_line import main

sys.exit(main())
