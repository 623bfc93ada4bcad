"""Several stories in one test, each in a separate world that is removed afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction


def on_each(*, sqlite: int, postgresql: int) -> int:
    """Return how many stories the database of this run is told.

    A few send all SQL that many send. The many look for faults of the rules, which are
    the same on both.
    """
    return postgresql if connection.vendor == "postgresql" else sqlite


class Gone(Exception):
    """The world ends here."""


@contextmanager
def world() -> Iterator[None]:
    """Take back, at the end, all that was written inside.

    It passes for a test's own transaction, so that services may begin durable ones.
    """
    try:
        with block():
            yield
            raise Gone
    except Gone:
        return


def block() -> transaction.Atomic:
    """Return a transaction in which services may begin durable ones."""
    made = transaction.atomic()
    made._from_testcase = True
    return made
