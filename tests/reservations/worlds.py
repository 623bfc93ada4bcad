"""Several stories in one test, each in a separate world that is removed afterwards."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction


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
