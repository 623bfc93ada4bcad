"""``python -m placement.planner estimate|plan|split``: see README.md."""

import sys

from placement.planner.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
