"""A log that nobody can flood."""

import logging
import subprocess
import sys

import pytest

from gpuportal.logs.log_bounds import RepeatFilter

pytestmark = pytest.mark.pure


def line(text="fact of %s refused", *values):
    return logging.LogRecord("a", logging.WARNING, "", 0, text, values, None)


def test_the_same_kind_of_line_is_written_so_often_a_minute_and_then_counted():
    clock = [0.0]
    bound = RepeatFilter(per_minute=3, clock=lambda: clock[0])

    written = [bound.filter(line("fact of %s refused", n)) for n in range(10)]
    other = bound.filter(line("another"))
    clock[0] = 60.0
    later = line("fact of %s refused", "node-b")
    again = bound.filter(later)

    assert written == [True] * 3 + [False] * 7
    assert (other, again) == (True, True)
    assert later.getMessage() == "fact of node-b refused (7 more in the minute before)"


def test_lines_that_are_all_different_are_bounded_too():
    bound = RepeatFilter(per_minute=3, clock=lambda: 0.0)

    written = sum(bound.filter(line(f"text {n}")) for n in range(5000))

    assert written == 1000


def failed(error: Exception) -> logging.LogRecord:
    try:
        raise error
    except Exception:
        exc_info = sys.exc_info()
    name, text = "uvicorn.error", "Exception in ASGI application\n"
    return logging.LogRecord(name, logging.ERROR, "", 0, text, (), exc_info)


def test_a_fault_that_repeats_has_its_traceback_once_a_minute():
    """A database that is away fails every socket in the same 200 lines."""
    clock = [0.0]
    bound = RepeatFilter(per_minute=3, clock=lambda: clock[0])
    written = []
    for number in range(10):
        record = failed(OSError(f"no route {number}"))
        if bound.filter(record):
            written.append(logging.Formatter().format(record))
    other = failed(ValueError("of another kind"))
    assert bound.filter(other)

    assert "Traceback" in written[0]
    assert written[1:] == [
        f"Exception in ASGI application: OSError: no route {n} (traceback above)"
        for n in (1, 2)
    ]
    assert "Traceback" in logging.Formatter().format(other)
    clock[0] = 60.0
    later = failed(OSError("no route"))
    assert bound.filter(later)
    assert "Traceback" in logging.Formatter().format(later)


def test_the_server_and_the_clock_log_within_bounds():
    """uvicorn, worker and beat bring handlers of their own, which know no bounds."""
    script = """
import logging, sys
sys.argv = ["celery", "beat"]
from uvicorn.config import LOGGING_CONFIG
logging.config.dictConfig(LOGGING_CONFIG)
from gpuportal.celery import app
app.log.setup(loglevel="WARNING")
for name in ("celery.beat", "uvicorn.error"):
    for n in range(50):
        try:
            raise OSError(n)
        except OSError:
            logging.getLogger(name).error("broker away", exc_info=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", "import logging.config\n" + script],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("Traceback") == 2
    assert done.stderr.count("broker away") == 40
