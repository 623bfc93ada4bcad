"""A function that a thread calls again and again until the process ends."""

import atexit
import threading
from collections.abc import Callable

EXIT_SECONDS = 3.0
"""The end of the process waits so long for a call that has begun."""


def repeat(call: Callable[[], object], every_seconds: float, name: str) -> None:
    """Call a function now and after each interval, in a thread.

    At exit Python stops a daemon thread in the middle of a call, and the thread keeps
    its locks. A client of the broker that then closes its connections would wait for
    such a lock for ever. So the exit waits for the call.

    Args:
        call: takes no longer than `EXIT_SECONDS`.
        name: of the thread.
    """
    ends = threading.Event()

    def run() -> None:
        while True:
            call()
            if ends.wait(every_seconds):
                return

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()

    def stop() -> None:
        ends.set()
        thread.join(EXIT_SECONDS)

    atexit.register(stop)
