"""The other end of the planner's connections: each answer takes some time.

The query has the number of milliseconds. ``die`` ends the worker, ``busy`` holds the
interpreter's lock without end, ``end`` ends the worker's parent too, ``file`` leaves a
temporary file and does not end. A path waits until a file is there. What it answers is
what it was asked, so that a test sees the order.
"""

import json
import os
import signal
import socket
import sys
import tempfile
import time

from gpuportal.http.planner_process import ended_after, fork_workers


def serve(sock: socket.socket) -> None:
    """Answer one request after another."""
    while True:
        told, files, _, _ = socket.recv_fds(sock, 1, 2)
        if not told:
            return
        about, body = (os.fdopen(one, "rb") for one in files)
        about.seek(0)
        body.seek(0)
        head = json.load(about)
        with ended_after(head["seconds"]):
            match head["query_string"]:
                case "die":
                    os._exit(1)
                case "end":
                    os.kill(os.getppid(), signal.SIGKILL)
                    time.sleep(20)
                case "busy":
                    sum(range(10**12))
                case "file":
                    tempfile.mkstemp(suffix=".upload")
                    time.sleep(20)
                case gate if gate.startswith("/"):
                    while not os.path.exists(gate):  # noqa: PTH110
                        time.sleep(0.01)
                case milliseconds:
                    time.sleep(int(milliseconds or 0) / 1000)
        with tempfile.TemporaryFile() as answer:
            said = {
                "status": 207,
                "headers": [
                    ["X-Pid", str(os.getpid())],
                    ["X-Group", str(os.getpgid(0))],
                ],
            }
            said["cookies"] = [["seen", "a b", {"path": "/"}]]
            answer.write(json.dumps(said).encode() + b"\n" + body.read())
            answer.flush()
            socket.send_fds(sock, [b"!"], [answer.fileno()])


if __name__ == "__main__":
    fork_workers([int(one) for one in sys.argv[1:]], serve)
