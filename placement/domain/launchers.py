"""What starts a Job's own script: its ``#!`` line, python, or a launcher of ranks.

The launchers are the user's own programs: found on the Job's PATH, never ours. Options:
torch 2.13 "torchrun", accelerate 1.15 "launch", DeepSpeed 0.19 "deepspeed --help".
"""

from collections.abc import Collection, Sequence
from enum import StrEnum

PLAN = "plan.json"
DEEPSPEED = "deepspeed.json"
ACCELERATE = "accelerate.json"
DEVICE_MAP = "device_map.json"
FILES = {
    PLAN: "GPUPORTAL_PLAN",
    DEEPSPEED: "GPUPORTAL_DEEPSPEED_CONFIG",
    ACCELERATE: "ACCELERATE_CONFIG_FILE",
    DEVICE_MAP: "GPUPORTAL_DEVICE_MAP",
}
"""Files of a Plan in the Job's folder -> what its environment calls their paths."""
MOST_FILES_BYTES = 2**20
MOST_FOLDER_CHARACTERS = 300


class Launcher(StrEnum):
    """Who starts the script."""

    OWN = ""
    PYTHON = "python"
    TORCHRUN = "torchrun"
    ACCELERATE = "accelerate"
    DEEPSPEED = "deepspeed"

    @property
    def label(self) -> str:
        """What a form calls it."""
        return _LABELS[self]


_LABELS = {
    Launcher.OWN: "itself: its #! line, else the shell",
    Launcher.PYTHON: "python: one process",
    Launcher.TORCHRUN: "torchrun: one process per GPU",
    Launcher.ACCELERATE: "accelerate launch: one process per GPU",
    Launcher.DEEPSPEED: "deepspeed: one process per GPU",
}


def folder_problem(folder: str) -> str:
    """Say why a folder cannot stand at the head of a PATH; "" where it can.

    >>> folder_problem("/home/alice/venv/bin")
    ''
    >>> folder_problem("venv/bin")
    'must be an absolute path on the node, or empty'
    """
    if len(folder) > MOST_FOLDER_CHARACTERS or not folder.isprintable():
        return f"must be at most {MOST_FOLDER_CHARACTERS} printable characters"
    if folder and not folder.startswith("/"):
        return "must be an absolute path on the node, or empty"
    if ":" in folder:
        return "cannot hold a colon: it separates the folders of a PATH"
    return ""
