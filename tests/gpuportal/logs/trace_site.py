"""A process of a portal that exports traces: one request, one websocket, one task.

It prints the headers of the task's message and the trace of a log line.
"""

import asyncio
import json
import logging
import sys
from contextlib import suppress

import redis
from django.urls import resolve

from gpuportal.asgi import application
from gpuportal.celery import app, trace_tasks
from gpuportal.logs.log_format import JsonLines, RequestIdFilter

TRACE = "0af7651916cd43dd8448eb211c80319c"
REQUEST = "proxy-gave-this-id"
SECRET = "b2xkLXNlY3JldA"
SECRET_PATHS = (
    f"/welcome/{SECRET}/",
    f"/join/{SECRET}/",
    f"/wall/{SECRET}/",
    f"/ical/{SECRET}.ics",
)
CLIENT = "192.0.2.77"


@app.task(name="trace_site.work")
def work() -> str:
    """Return a log line of a task."""
    record = logging.LogRecord("site", logging.INFO, "", 0, "done", None, None)
    RequestIdFilter().filter(record)
    return JsonLines().format(record)


async def ask(kind: str, path: str) -> int:
    """Ask as a proxy does; return the status."""
    sent: list[dict[str, object]] = []
    headers = [
        (b"host", b"testserver"),
        (b"x-request-id", REQUEST.encode()),
        (b"traceparent", f"00-{TRACE}-b7ad6b7169203331-01".encode()),
    ]
    scope = {"type": kind, "path": path, "raw_path": path.encode(), "root_path": ""}
    scope |= {"headers": headers, "client": (CLIENT, 1)}
    scope |= {"query_string": f"code={SECRET}".encode()}
    scope |= {"server": ("testserver", 80), "scheme": "http", "http_version": "1.1"}
    first = {"type": "websocket.connect"}
    if kind == "http":
        scope["method"] = "GET"
        first = {"type": "http.request", "body": b"", "more_body": False}
    came = iter([first])

    async def receive() -> dict[str, object]:
        found = next(came, None)
        if found is None:
            await asyncio.sleep(3600)
        return found or {}

    async def send(message: dict[str, object]) -> None:
        sent.append(message)

    await application(scope, receive, send)
    return int(str(sent[0].get("status", 0)))


def main() -> None:
    """Do the work, and send all spans."""
    statuses = [
        asyncio.run(ask("http", path))
        for path in ("/node/v1/jobs/17/script", f"/{SECRET}", "/healthz")
    ]
    for path in SECRET_PATHS:
        resolve(path)
        asyncio.run(ask("http", path))
    # There is no broker here, which only the span shows.
    with suppress(redis.ConnectionError):
        asyncio.run(ask("websocket", "/ws/board/"))
    found: dict[str, object] = {"statuses": statuses}
    tracer = sys.modules.get("opentelemetry.trace")
    if tracer is not None:
        app.conf.update(broker_url="memory://", task_always_eager=False)
        trace_tasks()
        with tracer.get_tracer("site").start_as_current_span("outer"):
            work.apply_async()
            with app.connection_for_read() as link:
                queue = link.SimpleQueue(app.conf.task_default_queue or "celery")
                found["headers"] = dict(queue.get(timeout=10).headers)
            found["line"] = json.loads(work.apply().get())
        tracer.get_tracer_provider().force_flush()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
