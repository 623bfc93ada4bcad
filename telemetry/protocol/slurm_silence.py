"""How Slurm's commands say that no controller answered. Pure.

A command that fails so may have been carried out all the same.
"""

_SENTENCES = (
    "unable to contact slurm controller",
    "unexpected message received",
    "socket timed out",
    "zero bytes were transmitted",
    "slurm backup controller in standby mode",
)


def is_silence(text: str) -> bool:
    """Return whether an error of one of Slurm's commands is no answer of a controller.

    The sentences are those of slurm_errno.c, from 22.05 to 25.05.

    >>> is_silence("sbatch: error: Unable to contact slurm controller")
    True
    """
    low = text.lower()
    return any(words in low for words in _SENTENCES)
