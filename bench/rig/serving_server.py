"""The server of a Job of kind ``serve``, with one model, with or without admission.

python -m bench.rig.serving_server SOCKET MODEL.onnx MOST_ROWS admits|first-come
"""

import os
import socket
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from placement.agent.serving.batch import HostedModel
from placement.agent.serving.executor import SWITCH_SECONDS, ServingExecutor
from placement.agent.serving.onnx_engine import Engine
from placement.agent.serving.server import run_in_loop, serve

ROOM_BYTES = 2**30
NAME = "mlp"


def main(arguments: list[str]) -> int:
    """Serve until SIGTERM."""
    address, path, rows, kind = arguments
    sys.setswitchinterval(SWITCH_SECONDS)
    engine = Engine(cuda=False, threads=1, room_bytes=ROOM_BYTES)
    station = ServingExecutor(engine, room_bytes=ROOM_BYTES, admits=kind == "admits")
    station.take(HostedModel(NAME, Path(path), 2**28, int(rows), deadline_ms=60_000))
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(1024)
    run_in_loop(serve(station, listener))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
