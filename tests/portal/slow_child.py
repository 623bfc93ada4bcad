"""Stands at the other end of the planner's connections: each answer takes its time.

The query says how many milliseconds; ``die`` ends the process. What it answers is what
it was asked, so that a test sees the order.
"""

import json
import os
import socket
import sys
import tempfile
import threading
import time


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
        if head["query_string"] == "die":
            os._exit(1)
        time.sleep(int(head["query_string"] or 0) / 1000)
        with tempfile.TemporaryFile() as answer:
            said = {"status": 207, "headers": [["X-Pid", str(os.getpid())]]}
            said["cookies"] = [["seen", "a b", {"path": "/"}]]
            answer.write(json.dumps(said).encode() + b"\n" + body.read())
            answer.flush()
            socket.send_fds(sock, [b"!"], [answer.fileno()])


if __name__ == "__main__":
    threads = [
        threading.Thread(target=serve, args=(socket.socket(fileno=int(one)),))
        for one in sys.argv[1:]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
