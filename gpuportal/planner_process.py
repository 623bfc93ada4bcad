"""The child of a web process that plans: ``planners.py`` tells why, and whose turn.

Each descriptor on the command line is one connection. A request comes as two files,
what ASGI knows of it and its body; the answer goes back as one. When the web process
ends, so do the connections and this process.
"""

import json
import logging
import os
import socket
import sys
import tempfile
import threading
from typing import IO, Any

import django

log = logging.getLogger(__name__)
FAILED = b'{"status": 500, "headers": [], "cookies": []}\n'
"""Head of the answer to a request that failed outside of Django's chain."""
NICE = 10
"""Pages come first."""


def main(descriptors: list[str]) -> None:
    """Answer until the web process is gone."""
    os.nice(NICE)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuportal.settings")
    django.setup(set_prefix=False)

    # Only after Django is set up; and the addresses once, before the first request.
    from django.urls import get_resolver

    import gpuportal.celery  # noqa: F401  (pages send tasks)
    from gpuportal.handler import OneHopHandler

    _ = get_resolver().url_patterns
    handler = OneHopHandler()
    threads = [
        threading.Thread(target=_serve, args=(socket.socket(fileno=int(one)), handler))
        for one in descriptors
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _serve(sock: socket.socket, handler: Any) -> None:
    while True:
        told, files, _, _ = socket.recv_fds(sock, 1, 2)
        if not told:
            return
        about, body = (os.fdopen(one, "rb") for one in files)
        with about, body, tempfile.TemporaryFile() as answer:
            about.seek(0)
            body.seek(0)
            try:
                _answer(handler, json.load(about), body, answer)
            except Exception:
                # This thread must go on: without it, the web ends the whole process,
                # and with it everybody's plans.
                log.exception("a request could not be answered")
                answer.seek(0)
                answer.truncate()
                answer.write(FAILED)
            answer.flush()
            try:
                socket.send_fds(sock, [b"!"], [answer.fileno()])
            except OSError:
                return


def _answer(
    handler: Any, head: dict[str, Any], body: IO[bytes], answer: IO[bytes]
) -> None:
    """Run Django's chain for one request and write what it answers."""
    from django.core import signals
    from django.core.handlers.asgi import get_script_prefix
    from django.urls import set_script_prefix

    scope = {
        **head,
        "type": "http",
        "query_string": head["query_string"].encode("latin1"),
        "headers": [
            (name.encode("latin1"), value.encode("latin1"))
            for name, value in head["headers"]
        ],
    }
    set_script_prefix(get_script_prefix(scope))
    signals.request_started.send(sender=type(handler), scope=scope)
    request, response = handler.create_request(scope, body)
    if request is not None:
        response = handler.get_response_here(request)
    try:
        pieces = (
            response.streaming_content if response.streaming else [response.content]
        )
        told = {
            "status": response.status_code,
            "headers": list(response.items()),
            "cookies": [
                [name, morsel.value, {k: v for k, v in morsel.items() if v}]
                for name, morsel in response.cookies.items()
            ],
        }
        answer.write(json.dumps(told).encode() + b"\n")
        answer.writelines(pieces)
    finally:
        response.close()


if __name__ == "__main__":
    main(sys.argv[1:])
