"""Start and kill the systemd units of Jobs on this machine.

``placement/agent/process/systemd_scope.py`` defines a unit's properties. This module
looks up its devices and memory and runs the commands. Only the level ``enforced`` uses
it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from placement.agent.process.systemd_scope import (
    MigPlace,
    ScopeLimits,
    UnitInvalid,
    card_of,
    device_files,
    kill_command,
    memory_ceiling_bytes,
    scope_command,
)
from placement.protocol.commands import Order
from placement.protocol.node_refusals import OrderRefused

VARIABLE = "GPUPORTAL_ISOLATION"
"""In the shim's environment: the level that the node worker reported."""
DRIVER = Path("/proc/driver")
ASK_SECONDS = 20.0
KILL_SECONDS = 10.0
CODE_DIR = Path(__file__).resolve().parents[3]
INSIDE = "placement.agent.process.unit_entry"


def unit_wanted() -> bool:
    """Whether this shim runs its Job in a unit."""
    return os.environ.get(VARIABLE) == "enforced"


def command(order: Order, *, driver: Path = DRIVER) -> list[str]:
    """Return the command that begins a Job in its unit.

    Raises:
        OrderRefused: ``isolation``, with the part that this machine lacks.
    """
    try:
        minors = _device_minors(driver)
        devices = () if order.simulated else _devices(order.gpu_uuids, minors, driver)
        words = scope_command(
            order.job,
            order.attempt,
            key=order.key,
            program=[sys.executable, "-P", "-m", INSIDE],
            devices=devices,
            ceilings=ScopeLimits(
                memory_bytes=memory_ceiling_bytes(
                    order.limits.memory_bytes,
                    machine_bytes=_memory_bytes(),
                    # A workspace without Gpus gets the memory of one.
                    gpus=max(1, len(order.gpu_uuids)),
                    machine_gpus=len(minors),
                ),
                tasks=order.limits.processes,
            ),
        )
    except UnitInvalid as error:
        raise OrderRefused("isolation", f"no unit for the job: {error}") from error
    program = shutil.which(words[0])
    if program is None:
        raise OrderRefused(
            "isolation", "no unit for the job: systemd-run is not installed"
        )
    return [program, *words[1:]]


def kill(job: int, attempt: int, key: str = "") -> bool:
    """Kill all processes of a Job's unit. False: there is no such unit any more."""
    try:
        done = subprocess.run(
            kill_command(job, attempt, key),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=KILL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _device_minors(driver: Path) -> dict[str, int]:
    """Return the minor number of each card by UUID, as the driver reports it."""
    found: dict[str, int] = {}
    for path in sorted((driver / "nvidia/gpus").glob("*/information")):
        if card := card_of(path.read_text(errors="replace")):
            found[card[0]] = card[1]
    return found


def _devices(
    uuids: Sequence[str], minors: dict[str, int], driver: Path
) -> tuple[str, ...]:
    """Return the device files of the reserved Gpus. Raises UnitInvalid."""
    split = [uuid for uuid in uuids if uuid.startswith("MIG-")]
    granted = driver / "nvidia-caps/mig-minors"
    return device_files(
        uuids,
        minors=minors,
        parts=_places(split) if split else {},
        capabilities=granted.read_text() if granted.exists() else "",
    )


def _places(uuids: Sequence[str]) -> dict[str, MigPlace]:
    """Return the places of MIG instances, read from the driver with a time limit."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "telemetry.agent.probe.mig_places", *uuids],
            cwd=CODE_DIR,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_SECONDS,
            check=True,
        )
        told = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        words = error.stderr.decode(errors="replace").strip()[-200:]
        raise UnitInvalid(words or "the driver does not answer") from error
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UnitInvalid("the driver does not say where its instances are") from error
    return {uuid: MigPlace(*numbers) for uuid, numbers in told.items()}
