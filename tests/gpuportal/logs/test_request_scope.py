"""The id of a request: in the answer, in the logs, with tasks, on the node."""

import asyncio
import io
import json
import logging

import pytest
import redis
from django.test import RequestFactory

from gpuportal import work_counters
from gpuportal.celery import app
from gpuportal.logs import log_format, task_request
from gpuportal.logs.request_scope import RequestScope
from telemetry import request_id

GIVEN = "0f3b6c1e-3f5d-4c59-9d4c-5a1f8a4c9f11"
TRACEBACK = "ZeroDivisionError: division by zero"


def answered(headers: list[tuple[bytes, bytes]], status: int = 200) -> tuple[str, list]:
    """Send a request through the scope. Return the id inside, and the headers."""
    inside, sent = [], []

    async def application(scope, receive, send):
        inside.append(request_id.current())
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"x-request-id", b"of the view"), (b"a", b"b")],
            }
        )
        await send({"type": "http.response.body", "body": b""})

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": "/", "headers": headers}
    asyncio.run(RequestScope(application)(scope, None, send))
    assert request_id.current() == ""
    return inside[0], sent[0]["headers"]


def test_a_request_is_counted_and_waits_for_the_broker(monkeypatch, caplog):
    """While the broker is away nothing is lost, and no request waits."""
    counted = []
    monkeypatch.setattr(work_counters, "count", lambda *one: counted.append(one[:2]))
    answered([])
    answered([], 429)
    answered([], 404)
    refused = [("request", "4xx"), ("refused", "429")]
    assert counted == [("request", "2xx"), *refused, ("request", "4xx")]
    monkeypatch.undo()
    away = redis.Redis(host="127.0.0.1", port=1)
    monkeypatch.setattr(work_counters.ticks, "broker", lambda: away)
    caplog.set_level("INFO", "gpuportal.work_counters")
    before = work_counters._counts["request 2xx count"]
    work_counters.count("request", "2xx", 0.5)
    work_counters.write()
    assert work_counters._counts["request 2xx count"] == before + 1
    assert "are not counted" in caplog.text


def test_an_id_of_the_proxy_is_used_and_returned():
    inside, headers = answered([(b"x-request-id", GIVEN.encode())])
    assert inside == GIVEN
    assert headers == [(b"a", b"b"), (b"x-request-id", GIVEN.encode())]


@pytest.mark.parametrize(
    "given",
    [
        [],
        [b""],
        [b"short"],
        [b"x" * 65],
        [b"a\nWARNING root: forged line"],
        [b"<script>alert(1)</script>"],
        [b"\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\xf7"],
        [GIVEN.encode(), GIVEN.encode()],
    ],
)
def test_an_id_that_is_not_safe_to_log_is_replaced(given):
    inside, headers = answered([(b"x-request-id", one) for one in given])
    assert len(inside) == 32 and int(inside, 16) >= 0
    assert headers[-1] == (b"x-request-id", inside.encode())


def line_of(form: str, log) -> str:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(log_format.formatter(form))
    handler.addFilter(log_format.RequestIdFilter())
    logger = logging.Logger("gpuportal.test")
    logger.addHandler(handler)
    log(logger)
    return out.getvalue()


def test_a_line_for_a_person_names_the_request_where_there_is_one():
    assert line_of("line", lambda one: one.warning("late by %d s", 3)) == (
        "WARNING gpuportal.test: late by 3 s\n"
    )
    with request_id.set_for(GIVEN):
        said = line_of("line", lambda one: one.warning("late"))
    assert said == f"WARNING gpuportal.test: late [request {GIVEN}]\n"


def test_a_json_line_is_one_object_even_with_an_error_in_it():
    def fail(logger: logging.Logger) -> None:
        try:
            print(1 / 0)
        except ZeroDivisionError:
            logger.exception(
                "two\nlines of %s",
                "text",
                extra={"job": 7, "data": {"kwargs": "a script"}},
            )

    with request_id.set_for(GIVEN):
        said = line_of("json", fail)
    assert said.count("\n") == 1
    found = json.loads(said)
    assert found.pop("time").endswith("Z")
    assert TRACEBACK in found.pop("exc_info")
    assert found.pop("pid") > 0
    assert found == {
        "level": "ERROR",
        "logger": "gpuportal.test",
        "message": "two\nlines of text",
        "request_id": GIVEN,
        "job": 7,
    }


def test_a_json_line_has_no_request_with_its_query_string():
    def warn(logger: logging.Logger) -> None:
        request = RequestFactory().get("/a/?code=secret")
        logger.warning("Not Found", extra={"request": request, "server": ("a", 1)})

    said = line_of("json", warn)
    assert "secret" not in said and not {"request", "server"} & json.loads(said).keys()


def test_another_form_is_refused():
    with pytest.raises(ValueError, match="LOG_FORMAT: must be one of line, json"):
        log_format.formatter("xml")


class _Request(dict):
    """The part of a task's request that is read."""


class _Task:
    def __init__(self, **headers: str) -> None:
        self.request = _Request(headers)


def test_a_task_runs_with_the_id_of_the_request_that_sent_it():
    headers: dict = {}
    with request_id.set_for(GIVEN):
        task_request.add_id(headers=headers)
    assert headers == {"request_id": GIVEN}
    task_request.set_id(task_id="t1", task=_Task(**headers))
    assert request_id.current() == GIVEN
    task_request.unset_id(task_id="t1")
    assert request_id.current() == ""


def test_a_task_that_no_request_sent_has_its_own_id():
    headers: dict = {}
    task_request.add_id(headers=headers)
    assert headers == {}
    task_request.set_id(task_id=GIVEN, task=_Task())
    assert request_id.current() == GIVEN
    task_request.unset_id(task_id=GIVEN)


def test_a_forged_id_in_a_queue_is_replaced():
    task_request.set_id(task_id="t2", task=_Task(request_id="a\nforged"))
    assert "\n" not in request_id.current()
    assert len(request_id.current()) == 32
    task_request.unset_id(task_id="t2")


def test_celery_carries_the_id_from_a_request_to_a_task(redis_client):
    """Through the real broker, as a worker reads it."""
    with request_id.set_for(GIVEN):
        app.send_task("gpuportal.no_such", queue="request-test", ignore_result=True)
    message = json.loads(redis_client.lpop("request-test"))
    assert message["headers"]["request_id"] == GIVEN
