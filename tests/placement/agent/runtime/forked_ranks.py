"""Ranks that are forked after torch is imported, which takes most of their start."""

import gc
import multiprocessing
import multiprocessing.connection
import socket
import sys


def fork_ranks(target, ranks, *words):
    """Call a function on so many ranks, with their environment as its last argument.

    The first rank that fails leaves the others waiting, so they end with it.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    gc.collect()
    gc.freeze()
    told = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": ranks}
    context = multiprocessing.get_context("fork")
    started = []
    for rank in map(str, range(int(ranks))):
        environ = told | {"RANK": rank, "LOCAL_RANK": rank}
        started.append(
            context.Process(target=target, args=(*words, environ), daemon=True)
        )
        started[-1].start()
    waiting = {process.sentinel: process for process in started}
    while waiting:
        for sentinel in multiprocessing.connection.wait(list(waiting)):
            if code := waiting.pop(sentinel).exitcode:
                sys.exit(f"a rank ended with {code}")
