"""The child of a web process that plans. ``planners.py`` has the reason and the order.

Each descriptor on the command line is one connection. A request comes as two files: its
ASGI scope and its body. The answer is returned as one file.

This process loads Django once and then forks a worker for each used connection. So a
plan that takes too much time or memory ends only its own worker, and workers share the
memory of the loaded code. A worker without work for a minute ends. The first
connection's worker stays, so that one is always ready.

When the web process ends, so do the connections, the workers and this process.
"""

import contextlib
import json
import logging
import os
import selectors
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

import django

from gpuportal.http.planners import ANSWERED, ENDED, TOO_LONG
from gpuportal.supervisor.kernel import die_with_parent

log = logging.getLogger(__name__)
FAILED = b'{"status": 500, "headers": [], "cookies": []}\n'
"""Head of the answer to a request that failed outside Django's chain."""
NICE = 10
"""Pages have priority."""
IDLE_SECONDS = 60.0
"""A worker ends after this time without a request."""
FOLDER = "gpuportal-planner-"
"""Temporary folders of this process and its workers, with the process's number."""
Serve = Callable[[socket.socket], None]


def main(descriptors: list[str]) -> None:
    """Answer requests until the web process is gone."""
    os.nice(NICE)
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpuportal.settings")
    django.setup(set_prefix=False)

    # Import only after Django is set up. The addresses are loaded once, before the
    # first request.
    from django.urls import get_resolver

    import gpuportal.celery  # noqa: F401  (pages send tasks)
    from gpuportal.http.handler import OneHopHandler

    _ = get_resolver().url_patterns
    handler = OneHopHandler()
    fork_workers([int(one) for one in descriptors], partial(serve, handler=handler))


def fork_workers(descriptors: Sequence[int], serve: Serve) -> None:
    """Fork a worker for each connection that is used, until all are closed.

    Args:
        descriptors: of the connections.
        serve: answers the requests of one connection, and returns when it was closed
            or was idle for long.
    """
    socks = [socket.socket(fileno=one) for one in descriptors]
    socks[0].settimeout(None)
    for sock in socks[1:]:
        sock.settimeout(IDLE_SECONDS)
    remove_leftovers()
    with (
        tempfile.TemporaryDirectory(prefix=f"{FOLDER}{os.getpid()}-") as folder,
        selectors.DefaultSelector() as events,
    ):
        for sock in socks:
            events.register(sock, selectors.EVENT_READ)
        while events.get_map():
            for key, _ in events.select():
                if isinstance(key.fileobj, socket.socket):
                    events.unregister(key.fileobj)
                    if _closed(key.fileobj):
                        key.fileobj.close()
                        continue
                    own = tempfile.mkdtemp(dir=folder)
                    pid = _fork_worker(key.fileobj, socks, events, serve, own)
                    ended, of = os.pidfd_open(pid), (pid, key.fileobj, own)
                    events.register(ended, selectors.EVENT_READ, of)
                else:
                    pid, sock, own = key.data
                    events.unregister(key.fileobj)
                    os.close(key.fd)
                    _, status = os.waitpid(pid, 0)
                    # A worker that was killed has not removed its files.
                    shutil.rmtree(own, ignore_errors=True)
                    if status:
                        _give_up(sock, status)
                    events.register(sock, selectors.EVENT_READ)


def remove_leftovers() -> None:
    """Remove the folders of planners that were killed."""
    for found in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        pid = found.name.removeprefix(FOLDER).partition("-")[0]
        with contextlib.suppress(OSError):
            own = found.stat(follow_symlinks=False).st_uid == os.getuid()
            if own and pid.isdigit() and not Path(f"/proc/{pid}").exists():
                shutil.rmtree(found, ignore_errors=True)


def _closed(sock: socket.socket) -> bool:
    """Return whether a connection was closed by the other side."""
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


def _fork_worker(
    sock: socket.socket,
    socks: Sequence[socket.socket],
    events: selectors.BaseSelector,
    serve: Serve,
    folder: str,
) -> int:
    """Return the process id of a worker that serves a connection.

    Its temporary files go into the folder.
    """
    dies_with_this = die_with_parent(signal.SIGKILL)
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        dies_with_this()
        # A broker or database that closes a connection is an error, but not the end.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        tempfile.tempdir = folder
        events.close()
        for other in socks:
            if other is not sock:
                other.close()
        serve(sock)
        status = 0
    except Exception:
        log.exception("a worker of the planner ended")
    finally:
        os._exit(status)


def _give_up(sock: socket.socket, status: int) -> None:
    """Report the worker's end, and discard a request that it had not taken."""
    too_long = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM
    if not too_long:
        log.error("a worker of the planner ended with status %s", status)
    timeout = sock.gettimeout()
    sock.setblocking(False)
    try:
        told = b"?"
        while told:
            told, files, _, _ = socket.recv_fds(sock, 1, 2)
            for one in files:
                os.close(one)
    except OSError:
        # There is nothing more, or the other side is gone.
        pass
    with contextlib.suppress(OSError):
        sock.send(TOO_LONG if too_long else ENDED)
    sock.settimeout(timeout)


def serve(sock: socket.socket, handler: Any) -> None:
    """Answer the requests of one connection, one after another."""
    while True:
        try:
            told, files, _, _ = socket.recv_fds(sock, 1, 2)
        except TimeoutError:
            return
        if not told:
            return
        about, body = (os.fdopen(one, "rb") for one in files)
        with about, body, tempfile.TemporaryFile() as answer:
            about.seek(0)
            body.seek(0)
            head = json.load(about)
            try:
                with ended_after(head.pop("seconds")):
                    _answer_request(handler, head, body, answer)
            except Exception:
                # The worker goes on, because it has loaded what the next request needs.
                log.exception("a request could not be answered")
                answer.seek(0)
                answer.truncate()
                answer.write(FAILED)
            answer.flush()
            try:
                socket.send_fds(sock, [ANSWERED], [answer.fileno()])
            except OSError:
                return


@contextmanager
def ended_after(seconds: float | None) -> Iterator[None]:
    """End this process if the block takes longer than this; None: no limit.

    The kernel sends SIGALRM, for which there is no handler. So it also ends code that
    holds the interpreter's lock.
    """
    if seconds is None:
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _answer_request(
    handler: Any, head: dict[str, Any], body: IO[bytes], answer: IO[bytes]
) -> None:
    """Run Django's chain for one request and write its answer."""
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
