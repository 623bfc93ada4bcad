"""A node of one's own for tests: folders, key, token, orders, all for real."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuportal.node_settings import NodeSettings
from placement import signing
from placement.domain.orders import Order, OrderKind
from placement.runners.base import JobFolder
from placement.runners.local import LocalRunner

GIB = 2**30
UNIX_USER = "games"


def make_settings(folder: Path, **changes: Any) -> NodeSettings:
    """Return the settings of node ``node1`` with everything under a folder."""
    token, key = folder / "node.token", folder / "order_key.pub"
    token.write_text("token-of-node1")
    key.write_text(signing.public_key_pem())
    known = NodeSettings(
        name="node1",
        redis_url=os.environ.get("TEST_REDIS_URL", "redis://127.0.0.1:1"),
        web_url="http://127.0.0.1:1",
        token_file=token,
        order_key_file=key,
        node_dir=folder / "node",
        backend="simulated",
        sim_dir=folder / "sim",
        allow_scripts=True,
    )
    return replace(known, **changes)


def make_order(**changes: Any) -> Order:
    """Return an order to start ``burn-in`` on one real-looking Gpu for a minute."""
    now = time.time()
    known: dict[str, Any] = {
        "kind": OrderKind.START,
        "node": "node1",
        "job": 7,
        "attempt": 1,
        "nonce": os.urandom(8).hex(),
        "issued_at": now,
        "expires_at": now + 30,
        "deadline_at": now + 60,
        "grace_seconds": 1.0,
        "gpu_uuids": ("GPU-node1-0",),
        "gpu_indexes": (0,),
        "user": "alice",
        "recipe": "burn-in",
        "settings": {"seconds": 30, "lines_per_second": 20},
    }
    return Order(**{**known, **changes})


def script_folder(
    settings: NodeSettings, script: str, **changes: Any
) -> tuple[LocalRunner, JobFolder]:
    """Accept an order whose script is already in its place: no web is needed."""
    runner = LocalRunner(settings)
    order = make_order(recipe=None, settings={}, **{"argv": (), **changes})
    folder = runner.accept(order, order.payload())
    folder.work.mkdir(mode=0o700)
    path = folder.work / "script"
    path.write_text(script)
    path.chmod(0o755)
    return runner, folder


def write_simulation(settings: NodeSettings, uuids: tuple[str, ...]) -> None:
    """Write the file that says which simulated Gpus the node has."""
    assert settings.sim_dir is not None
    settings.sim_dir.mkdir(parents=True, exist_ok=True)
    gpus = [
        {
            "uuid": uuid,
            "index": index,
            "name": "NVIDIA A100 80GB PCIe",
            "gpu_class": "A100 PCIe 80GB",
            "memory_total_bytes": 80 * GIB,
            "power_limit_watts": 300.0,
            "slowdown_celsius": 90.0,
            "sm_clock_max_mhz": 1410,
            "pci_bus_id": f"00000000:0{index}:00.0",
            "serial": f"S{index}",
            "compute_capability": "8.0",
            "mig": False,
        }
        for index, uuid in enumerate(uuids)
    ]
    (settings.sim_dir / f"{settings.name}.json").write_text(
        json.dumps({"gpus": gpus, "fast_links": [], "actors": []})
    )


def until(condition: Callable[[], Any], seconds: float = 15.0, what: str = "") -> Any:
    """Wait for something to become true, and return it."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, (
            f"waited {seconds} s for {what or condition}"
        )
        time.sleep(0.02)
    return found


def ended(folder: JobFolder, seconds: float = 15.0) -> dict[str, Any]:
    """Wait for a Job's end and for its shim's; return its status."""
    until(
        lambda: folder.read("status").get("event") in ("exited", "lost", "refused"),
        seconds,
        f"the end of {folder.name}",
    )
    return folder.read("status")
