"""Steps of periodic work. One that fails is logged and does not stop the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Concatenate, ParamSpec, TypeVar

Row = TypeVar("Row")
Given = ParamSpec("Given")


@contextmanager
def isolated(log: logging.Logger, what: str, *values: object) -> Iterator[None]:
    """Log an error of the block with its traceback, and go on after the block.

    Args:
        log: where to.
        what: what failed, as a format for ``values``.
    """
    try:
        yield
    except Exception:
        log.exception(what, *values)


class RowSteps:
    """Runs steps on rows of one kind: ``each_job(rows, step, now)``.

    A row whose step fails is logged, by its primary key and the step's name, and
    skipped.
    """

    def __init__(self, log: logging.Logger, kind: str) -> None:
        """Set where a failure is logged, and what a row is, such as "job"."""
        self._log = log
        self._kind = kind

    def __call__(
        self,
        rows: Iterable[Row],
        step: Callable[Concatenate[Row, Given], int],
        *args: Given.args,
        **kwargs: Given.kwargs,
    ) -> int:
        """Run a step on each row; return the sum of what the step returns.

        Args:
            rows: rows of the database, or their keys. A query set is asked first
                whether it has any: that takes a tenth of the CPU in which Django
                makes a query for the columns of six tables, and most ticks find none.
            step: returns how much it changed: a number, or whether it changed the row.
            args: for the step, after the row.
            kwargs: for the step.
        """
        done = 0
        has_any = getattr(rows, "exists", None)
        if has_any is not None and not has_any():
            return done
        failed = f"{self._kind} %s: {getattr(step, '__name__', 'step')} failed"
        for row in rows:
            with isolated(self._log, failed, getattr(row, "pk", row)):
                done += step(row, *args, **kwargs)
        return done
