"""Checks of the configuration for errors that the first booking would show."""

from collections.abc import Sequence
from typing import Any

from django.core.checks import Error, register

from reservations.models.triggers import missing


@register("database")
def check_database_guards(
    databases: Sequence[str] | None = None, **_: Any
) -> list[Error]:
    """Check that the database itself refuses overlaps and changed ledgers.

    Runs with ``manage.py check --database default``. Before the first ``migrate`` it
    finds no errors.
    """
    found = []
    for alias in databases or ():
        for name in missing(alias):
            found.append(
                Error(
                    f"The database lacks the guard {name}.",
                    hint="Run manage.py migrate: it installs the guards again.",
                    id="reservations.E001",
                )
            )
    return found
