"""A step that fails is logged once with its traceback and stops no other."""

import logging
from collections.abc import Iterator

import pytest

from telemetry.rules.isolated_steps import RowSteps, isolated

pytestmark = pytest.mark.pure
log = logging.getLogger("steps")


class Row:
    def __init__(self, pk: int) -> None:
        self.pk = pk


def halve(row: Row, by: int) -> int:
    return row.pk // by


def test_each_row_is_tried_and_the_failing_ones_are_logged(caplog) -> None:
    def odd_fails(row: Row, least: int) -> bool:
        if row.pk % 2:
            raise ArithmeticError("odd")
        return row.pk > least

    rows = [Row(pk) for pk in range(6)]
    assert RowSteps(log, "job")(rows, odd_fails, 2) == 1
    # The portal's log says after the first one that its traceback is above.
    assert [one.partition(" failed")[0] for one in caplog.messages] == [
        f"job {pk}: odd_fails" for pk in (1, 3, 5)
    ]
    assert caplog.records[0].exc_info


def test_what_steps_return_is_added_up() -> None:
    assert RowSteps(log, "job")([Row(4), Row(6)], halve, by=2) == 5


def test_a_query_set_without_rows_is_not_read() -> None:
    class NoRows:
        """A query set, as far as the steps know it."""

        def exists(self) -> bool:
            return False

        def __iter__(self) -> Iterator[Row]:
            raise AssertionError("read")

    assert RowSteps(log, "job")(NoRows(), halve, by=2) == 0


def test_an_error_that_nobody_expected_is_isolated_too(caplog) -> None:
    with isolated(log, "%s failed", "rolling up"):
        raise AttributeError("a bug")
    assert caplog.messages == ["rolling up failed"]


def test_a_process_that_is_told_to_end_is_not_kept(caplog) -> None:
    with pytest.raises(KeyboardInterrupt), isolated(log, "step failed"):
        raise KeyboardInterrupt
    assert caplog.messages == []
