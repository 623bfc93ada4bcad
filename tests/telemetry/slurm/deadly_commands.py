"""Slurm's commands, of which one kills the controller at an exact moment."""

import shutil
from pathlib import Path

from tests.telemetry.slurm.slurm_processes import PATH, SlurmProcesses

_SCRIPT = """#!/bin/sh
word={name}
[ {name} = scontrol ] && word=$1
if mv {folder}/before-$word {folder}/fired 2>/dev/null; then
  kill -9 $(cat {folder}/fired)
  echo 'Unable to contact slurm controller (connect failure)' >&2
  exit 1
fi
{real} "$@"
status=$?
if mv {folder}/after-$word {folder}/fired 2>/dev/null; then
  kill -9 $(cat {folder}/fired)
  echo 'Zero Bytes were transmitted or received' >&2
  exit 1
fi
exit $status
"""
_DEADLY, _OTHERS = ("sbatch", "scancel", "scontrol"), ("sinfo", "squeue")


class DeadlyCommands:
    """A folder of commands for SLURM_FOLDER. Errors have Slurm's words, which the
    commands themselves print only after nine seconds."""

    def __init__(self, cluster: SlurmProcesses, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        folder.mkdir()
        for name in (*_DEADLY, *_OTHERS):
            real = shutil.which(name, path=PATH)
            assert real is not None, "apt-get install slurm-client"
            if name in _OTHERS:
                (folder / name).symlink_to(real)
                continue
            program = folder / name
            program.write_text(_SCRIPT.format(name=name, real=real, folder=folder))
            program.chmod(0o755)

    def arm(self, when: str, word: str) -> None:
        """Kill the controller once.

        Args:
            when: "before" the request reaches it, or "after" it was carried out.
            word: a verb of scontrol (create, update, delete), sbatch or scancel.
        """
        mark = self.folder / f"{when}-{word}"
        mark.with_suffix(".new").write_text(
            str(self.cluster.processes["slurmctld"].pid)
        )
        mark.with_suffix(".new").replace(mark)

    def fired(self) -> bool:
        """Return whether the controller was killed, and reap it."""
        fired = self.folder / "fired"
        if not fired.exists():
            return False
        fired.unlink()
        self.cluster.kill("slurmctld")
        return True
