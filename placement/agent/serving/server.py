"""The server of a Job of kind ``serve``: a child of server_guard.py.

    python -m placement.agent.serving.server SETTINGS FAILED

Listens on descriptor 3, a Unix socket that the shim opened where the Job cannot write.
It never opens a socket itself. The node's side of the tunnel names the folders of
complete model files and says when to load and unload them.

Every half minute, and at the end, it prints its counters as a line of JSON.
"""

import asyncio
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from collections.abc import Coroutine, Mapping
from typing import Any

import uvicorn
import uvloop

from placement.agent.serving.executor import SWITCH_SECONDS, ServingExecutor
from placement.agent.serving.inference_app import ServeApp
from placement.agent.serving.model_limits import NOTE_VARIABLE, RunNote, bound_process
from placement.agent.serving.onnx_engine import Engine

LISTENER = 3
TELL_SECONDS = 30.0
PR_SET_NO_NEW_PRIVS = 38
MOST_AT_ONCE = 128


class JobServer(uvicorn.Server):
    """Uvicorn that installs no signal handlers."""

    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Leave signals to ``main``."""
        yield


def make_station(
    settings: Mapping[str, Any], failed: Mapping[str, str], note: RunNote | None = None
) -> ServingExecutor:
    """Return the station that the Job's settings ask for.

    Args:
        settings: of the recipe.
        failed: files that are not to be loaded, and why.
        note: what the parent process reads.
    """
    room_bytes = int(settings["room_bytes"])
    engine = Engine(
        cuda=os.environ.get("GPUPORTAL_SIMULATED") == "0",
        threads=int(settings["threads"]),
        room_bytes=room_bytes,
        note=note,
    )
    return ServingExecutor(engine, room_bytes=room_bytes, failed=failed)


async def serve(station: ServingExecutor, listener: socket.socket) -> None:
    """Serve until SIGTERM."""
    config = uvicorn.Config(
        ServeApp(station),  # type: ignore[arg-type]
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        limit_concurrency=MOST_AT_ONCE,
        timeout_graceful_shutdown=2,
        ws="none",
    )
    server = JobServer(config)
    loop = asyncio.get_running_loop()

    def leave() -> None:
        station.stop()
        server.should_exit = True

    loop.add_signal_handler(signal.SIGTERM, leave)
    print(f"serving on {station.engine.provider}", flush=True)
    loops = [
        asyncio.create_task(station.run()),
        asyncio.create_task(_print_statistics_loop(station)),
    ]
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    done, _ = await asyncio.wait({serving, *loops}, return_when=asyncio.FIRST_COMPLETED)
    leave()
    await serving
    loops[1].cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await loops[1]
    for task in done:
        task.result()
    _print_statistics(station)


async def _print_statistics_loop(station: ServingExecutor) -> None:
    while True:
        await asyncio.sleep(TELL_SECONDS)
        _print_statistics(station)


def _print_statistics(station: ServingExecutor) -> None:
    for one in station.to_json()["models"]:
        latency = one["latency_ms"] or {}
        line = {
            "model": one["name"],
            "state": one["state"],
            "in_time": one["in_time"],
            "late": one["late"] + one["dropped"],
            "refused": one["refused"] + one["full"],
            **{f"latency_{name}_ms": value for name, value in latency.items()},
        }
        print(json.dumps(line), flush=True)


def run_in_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run it in an event loop that costs a request little."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


def main(arguments: list[str]) -> int:
    """Take the listening socket and serve."""
    if len(arguments) != 2:
        sys.stderr.write(
            "usage: python -m placement.agent.serving.server SETTINGS FAILED\n"
        )
        return 2
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    sys.setswitchinterval(SWITCH_SECONDS)
    listener = socket.socket(fileno=LISTENER)
    settings, failed = (json.loads(text) for text in arguments)
    noted = os.environ.get(NOTE_VARIABLE)
    station = make_station(settings, failed, RunNote(int(noted)) if noted else None)
    cuda = station.engine.provider == "cuda"
    bound_process(int(settings["room_bytes"]), cuda=cuda)
    run_in_loop(serve(station, listener))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
