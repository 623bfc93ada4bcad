"""A separate node for tests: folders, key, token, commands, all real."""

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from gpuportal.node_settings import NodeSettings
from placement.agent.job_folder import JobFolder
from placement.agent.local_runner import LocalRunner, halt_all, shim_lives
from placement.protocol import signing
from placement.protocol.commands import Order, OrderKind
from telemetry.proc_stat import PROC, process_table

GIB = 2**30


def make_settings(folder: Path, *, name: str = "node1", **changes: Any) -> NodeSettings:
    """Return the settings of a node with everything under a folder."""
    token, key = folder / "node.token", folder / "order_key.pub"
    token.write_text(f"token-of-{name}")
    key.write_text(signing.public_key_pem())
    known = NodeSettings(
        name=name,
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
        "deadline_at": now + 3600,
        "grace_seconds": 1.0,
        "gpu_uuids": ("GPU-node1-0",),
        "gpu_indexes": (0,),
        "user": "alice",
        "recipe": "burn-in",
        "settings": {"seconds": 30, "lines_per_second": 20},
    }
    known |= changes
    known.setdefault("expires_at", min(now + 120, known["deadline_at"]))
    return Order(**known)


class Web:
    """A separate web that serves one script and accepts logs, over HTTP."""

    def __init__(
        self, script: str = "", *, names: tuple[str, ...] = ("node1",)
    ) -> None:
        self.script = script.encode()
        self.files = b""
        self.pages: dict[str, bytes] = {}
        """Address -> additional content."""
        self.logs: dict[str, bytes] = {}
        self.down = False
        self.refused = 0
        """Requests for a file that came while it was down."""
        web, known = self, {f"Node {name}:token-of-{name}" for name in names}

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None:
                pass

            def answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                if web.down or self.headers["Authorization"] not in known:
                    self.answer(503 if web.down else 401, b"")
                    web.refused += web.down
                    return
                files = self.path.endswith("/files")
                usual = web.files if files else web.script
                self.answer(200, web.pages.get(self.path.partition("?")[0], usual))

            def do_PUT(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                if web.down:
                    self.answer(503, b"")
                    return
                address = urlsplit(self.path)
                asked = parse_qs(address.query)
                if "offset" not in asked:
                    web.logs[address.path] = data
                    self.answer(204, b"")
                    return
                have = web.logs.get(address.path, b"")
                fits = int(asked["offset"][0]) == len(have)
                if fits:
                    have = web.logs[address.path] = have + data
                size = json.dumps({"size": len(have)}).encode()
                self.answer(200 if fits else 409, size)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def log_of(self, job: int) -> bytes:
        """Return what was uploaded of a Job's log."""
        return self.logs.get(f"/node/v1/jobs/{job}/log", b"")

    def close(self) -> None:
        """Stop serving."""
        self.server.shutdown()
        self.server.server_close()


def script_order(web: Web, **changes: Any) -> Order:
    """Return an order for the script that a Web gives out."""
    sha256 = hashlib.sha256(web.script).hexdigest()
    known = {"recipe": None, "settings": {}, "argv": (), "script_sha256": sha256}
    return make_order(**{**known, **changes})


def start(settings: NodeSettings, order: Order) -> JobFolder:
    """Accept a command and start its shim."""
    runner = LocalRunner(settings)
    folder = runner.accept(order, order.payload())
    runner.start(folder)
    return folder


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


PATIENCE_SECONDS = 90.0
"""What a busy machine may take for anything. Only a test that fails waits so long."""


def until(
    condition: Callable[[], Any],
    seconds: float = PATIENCE_SECONDS,
    what: str = "",
    *,
    pause_seconds: float = 0.2,
) -> Any:
    """Wait for something to become true, and return it.

    The longer it waits, the more seldom it looks: many conditions read every process of
    the machine.

    Args:
        pause_seconds: between two looks, at most.
    """
    began = time.monotonic()
    while not (found := condition()):
        waited = time.monotonic() - began
        assert waited < seconds, f"waited {seconds} s for {what or condition}"
        time.sleep(min(0.02 + waited * pause_seconds / 4, pause_seconds))
    return found


def ended(folder: JobFolder, seconds: float = PATIENCE_SECONDS) -> dict[str, Any]:
    """Wait for a Job's end and for its shim's; return its status."""
    until(
        lambda: folder.read("status").get("event") in ("exited", "lost", "refused"),
        seconds,
        f"the end of {folder.name}",
    )
    until(lambda: not shim_lives(folder), what="the shim's end")
    return folder.read("status")


def end_all_jobs(node_dir: Path) -> None:
    """End every Job of a node's folder, after a test."""
    left = halt_all(node_dir, reason="the test is over", wait_seconds=PATIENCE_SECONDS)
    assert left == 0


def log_text(folder: JobFolder) -> str:
    """Return a Job's log; nothing where its shim has not made the file yet."""
    return folder.log.read_text() if folder.log.exists() else ""


def living(marker: str) -> list[int]:
    """Return the processes whose command line holds a word, zombies left out."""
    found = []
    for item in process_table():
        try:
            line = (PROC / str(item.pid) / "cmdline").read_bytes()
        except OSError:
            continue
        if marker.encode() in line and not item.dead and item.pid != os.getpid():
            found.append(item.pid)
    return found
