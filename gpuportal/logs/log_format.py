"""The form of log lines: for a person, or one JSON object a line for a log store.

Both have the id of the request that caused the work (telemetry/request_id.py).
Web, workers and nodes use the same two forms. ``LOG_FORMAT`` chooses one.
"""

import logging
from datetime import UTC, datetime

from pythonjsonlogger.json import JsonFormatter

from gpuportal.logs import trace_export
from telemetry import request_id

FORMATS = ("line", "json")
LINE = "%(levelname)s %(name)s: %(message)s%(request_words)s"
JSON_FIELDS = {
    "asctime": "time",
    "levelname": "level",
    "name": "logger",
    "process": "pid",
}
"""Attributes of a record, and their names in an object. The message and, with an
error, `exc_info` have their own names."""
NOT_WRITTEN = ("request_words", "data", "request", "server")
"""Attributes that no object gets. In `data` Celery adds a task's arguments to its
lines, such as the script of a job. In `request` and `server` Django adds a request with
its query string."""


class RequestIdFilter(logging.Filter):
    """Adds the id of the present request to each record. It drops nothing."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Set `request_id`, and `request_words` for the form of a person."""
        found = request_id.current()
        record.request_id = found or None
        record.request_words = f" [request {found}]" if found else ""
        if trace_id := trace_export.trace_id():
            record.trace_id = trace_id
        return True


class JsonLines(JsonFormatter):
    """Writes one JSON object a line. Its time is UTC in RFC 3339."""

    def __init__(self) -> None:
        super().__init__(
            [*JSON_FIELDS, "message", "request_id"],
            rename_fields=JSON_FIELDS,
            reserved_attrs=[*logging.makeLogRecord({}).__dict__, *NOT_WRITTEN],
        )

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the time of a record with milliseconds."""
        at = datetime.fromtimestamp(record.created, UTC)
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def formatter(form: str) -> logging.Formatter:
    """Return the formatter for a value of ``LOG_FORMAT``.

    Raises:
        ValueError: there is no such form.
    """
    if form not in FORMATS:
        raise ValueError(f"LOG_FORMAT: must be one of {', '.join(FORMATS)}")
    return JsonLines() if form == "json" else logging.Formatter(LINE)
