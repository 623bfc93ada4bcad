"""Standing in line to write, where the database knows no line.

SQLite has one writer at a time, and who waits for it polls, up to ten times a second:
in a rush some win ten times in a row and others give up after the timeout ("database
is locked"). flock(2) on a file beside the database wakes whoever waited longest, over
threads and processes, and the kernel frees it when a holder dies. Only the rush stands
in line; everybody else still polls, so the line is courtesy and SQLite's lock the rule.
PostgreSQL locks rows, with lines of its own: there this does nothing.
"""

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.db import connection

_mine = threading.local()


@contextmanager
def wait_for_turn() -> Iterator[None]:
    """Wait until nobody else who stands in line writes.

    To be taken around a transaction, never inside one: who writes already does not
    wait for those who wait for it.
    """
    name = str(connection.settings_dict["NAME"])
    in_memory = ":memory:" in name or "mode=memory" in name
    writes = getattr(_mine, "holds", False) or connection.in_atomic_block
    if connection.vendor != "sqlite" or in_memory or writes:
        yield
        return
    with Path(f"{name}.line").open("a") as line:
        fcntl.flock(line, fcntl.LOCK_EX)
        _mine.holds = True
        try:
            yield
        finally:
            _mine.holds = False
