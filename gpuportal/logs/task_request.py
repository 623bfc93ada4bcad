"""Carry the id of a request with the tasks that it sends, and set it where they run.

Portal and nodes import this module. A task that no request sent, such as a tick, counts
as a request: its id is the task's.
"""

from contextvars import Token
from typing import Any

from celery.signals import before_task_publish, task_postrun, task_prerun

from telemetry import request_id

_running: dict[str, Token[str]] = {}
"""Tokens that restore the id from before each running task, by the task's id."""


@before_task_publish.connect(weak=False)
def add_id(headers: dict[str, Any] | None = None, **_kwargs: object) -> None:
    """Add the present request's id to a task that is sent."""
    if headers is not None and request_id.current():
        headers.setdefault(request_id.TASK_HEADER, request_id.current())


@task_prerun.connect(weak=False)
def set_id(task_id: str = "", task: Any = None, **_kwargs: object) -> None:
    """Set the id for the lines of the task."""
    given = task.request.get(request_id.TASK_HEADER) or task_id
    _running[task_id] = request_id.begin(request_id.accepted(given))


@task_postrun.connect(weak=False)
def unset_id(task_id: str = "", **_kwargs: object) -> None:
    """Set what was set before the task."""
    token = _running.pop(task_id, None)
    if token is not None:
        request_id.end(token)
