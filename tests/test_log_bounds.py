"""A log that nobody can flood."""

import logging

import pytest

from gpuportal.log_bounds import Repeats

pytestmark = pytest.mark.pure


def line(text="fact of %s refused", *values):
    return logging.LogRecord("a", logging.WARNING, "", 0, text, values, None)


def test_the_same_kind_of_line_is_written_so_often_a_minute_and_then_counted():
    clock = [0.0]
    bound = Repeats(per_minute=3, clock=lambda: clock[0])

    written = [bound.filter(line("fact of %s refused", n)) for n in range(10)]
    other = bound.filter(line("another"))
    clock[0] = 60.0
    later = line("fact of %s refused", "node-b")
    again = bound.filter(later)

    assert written == [True] * 3 + [False] * 7
    assert (other, again) == (True, True)
    assert later.getMessage() == "fact of node-b refused (7 more in the minute before)"


def test_lines_that_are_all_different_are_bounded_too():
    bound = Repeats(per_minute=3, clock=lambda: 0.0)

    written = sum(bound.filter(line(f"text {n}")) for n in range(5000))

    assert written == 1000
