"""The demo lab's simulated nodes: enrolment, rosters and scripted processes."""

import json
import os
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

from gpuportal.demo.lab import LOST, NODES, SimulatedNode
from telemetry.protocol.hardware import NodeInfo

Actor = dict[str, object]


def gpu_uuid(node: str, index: int) -> str:
    """Return the fixed UUID of a simulated Gpu, so that a second load finds the
    same.
    """
    letter = ord(node[-1]) - ord("a") + 1
    return f"GPU-51{letter:02d}0000-0000-4000-8000-{index:012d}"


def roster_gpus(node: SimulatedNode) -> list[dict[str, object]]:
    """Return the node's Gpus in the form of a roster message."""
    return [
        {
            "uuid": gpu_uuid(node.name, index),
            "index": index,
            "name": node.gpu_name,
            "gpu_class": node.gpu_class,
            "memory_total_bytes": node.memory_bytes,
            "power_limit_watts": node.power_limit_watts,
            "slowdown_celsius": node.slowdown_celsius,
            "sm_clock_max_mhz": node.sm_clock_max_mhz,
            "pci_bus_id": f"00000000:{0x17 + 16 * index:02X}:00.0",
            "serial": f"SIM{ord(node.name[-1]):03d}{index:04d}",
            "compute_capability": "8.0" if node.linked else "8.6",
            "mig": False,
        }
        for index in range(node.count)
    ]


def fast_links(node: SimulatedNode) -> list[list[str]]:
    """Return the pairs joined by NVLink: all of them, or none."""
    if not node.linked:
        return []
    names = [gpu_uuid(node.name, index) for index in range(node.count)]
    return [[a, b] for i, a in enumerate(names) for b in names[i + 1 :]]


def write_simulation(
    folder: Path, actors: Mapping[str, Iterable[Actor]], *, now: datetime
) -> None:
    """Write one file per node that the simulated probe reads.

    Args:
        folder: target of the files.
        actors: per node name, the scripted processes.
        now: recorded as the simulation's epoch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for node in NODES:
        gpus = [
            gpu | {"lost": (node.name, gpu["index"]) == LOST}
            for gpu in roster_gpus(node)
        ]
        text = json.dumps(
            {
                "epoch": now.timestamp(),
                "gpus": gpus,
                "fast_links": fast_links(node),
                "actors": list(actors.get(node.name, ())),
            },
            indent=1,
        )
        draft = folder / f".{node.name}.{os.getpid()}"
        draft.write_text(text)
        draft.replace(folder / f"{node.name}.json")


def roster(node: SimulatedNode, *, at: float) -> NodeInfo:
    """Return the roster that the node will report. ``at``: Unix time."""
    message = {
        "v": 1,
        "kind": "roster",
        "at": at,
        "backend": "simulated",
        "driver_version": "simulated",
        "cuda_version": "12.8",
        "boot_id": "demo",
        "isolation": "none",
        "gpus": roster_gpus(node),
        "fast_links": fast_links(node),
    }
    return NodeInfo.from_message(json.dumps(message), node=node.name)
