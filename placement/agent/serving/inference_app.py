"""The Open Inference Protocol v2 over HTTP, for one station.

It is only behind the node's tunnel, on a socket that no other user can open. Paths that
begin with /repository/ and /stats are for the node. The portal's door refuses them from
outside.

    GET  /v2, /v2/health/live, /v2/health/ready
    GET  /v2/models/M[/versions/1], /v2/models/M[/versions/1]/ready
    GET  /v2/models/M[/versions/1]/stats, /v2/models/stats
    POST /v2/models/M[/versions/1]/infer
    POST /v2/repository/index {"ready": true: only those that are ready}
    POST /repository/models/M/load {"path", "memory_bytes", "most_batch", "deadline_ms"}
         and "failed" of a model that is not to be loaded: why it could not be served
    POST /repository/models/M/unload
    GET  /stats
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from placement.agent.serving.batch import HostedModel
from placement.agent.serving.executor import ServingExecutor
from placement.agent.serving.inference_answer import write_answer
from placement.agent.serving.onnx_engine import EngineError
from placement.agent.serving.tensors import (
    InferenceRequest,
    TensorInvalid,
    deadline_of,
    read_request,
)
from placement.protocol.call_refusal import CallRefused
from placement.protocol.serving_times import ServingError
from telemetry.protocol.coded_error import PROBLEM_TYPE, problem_details

MOST_BODY_BYTES = 16 * 2**20
NAME = "gpuportal"
VERSION = "1"
EXTENSIONS = ["binary_tensor_data", "statistics"]
INDEX = "/v2/repository/index"
ALL_STATISTICS = "/v2/models/stats"
"""The statistics of all models, unless a model has this name."""
_STATES = {"loading": "LOADING", "ready": "READY"}
"""States in the repository's index. Every other one is UNAVAILABLE."""
LENGTH_HEADER = "inference-header-content-length"
_MODEL = re.compile(
    r"/v2/models/([A-Za-z0-9][A-Za-z0-9_.-]{0,62})(?:/versions/1)?(/ready|/infer|/stats|)"
)
_REPOSITORY = re.compile(
    r"/repository/models/([A-Za-z0-9][A-Za-z0-9_.-]{0,62})/(load|unload)"
)

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class InferenceAnswer:
    """An answer that ends the request."""

    def __init__(
        self,
        status: int,
        body: bytes | Mapping[str, Any],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.headers = {"content-type": "application/json", **(headers or {})}


def _refused(error: CallRefused) -> InferenceAnswer:
    """Return the problem (RFC 9457) that answers a refused call."""
    assert error.status is not None
    headers = {"content-type": PROBLEM_TYPE}
    if error.retry_seconds:
        headers["retry-after"] = str(error.retry_seconds)
    if error.code == "method":
        headers["allow"] = str(error.members["allow"])
    return InferenceAnswer(error.status, problem_details(error), headers)


class ServeApp:
    """An ASGI application for one station."""

    def __init__(self, station: ServingExecutor) -> None:
        self.station = station

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if scope["type"] != "http":
            return
        try:
            answer = await self._answer(scope, receive)
        except CallRefused as refused:
            answer = _refused(refused)
        await send(
            {
                "type": "http.response.start",
                "status": answer.status,
                "headers": [
                    (name.encode(), value.encode())
                    for name, value in answer.headers.items()
                ]
                + [(b"content-length", str(len(answer.body)).encode())],
            }
        )
        await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, scope: Scope, receive: Receive) -> InferenceAnswer:
        method, path = scope["method"], scope["path"]
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        if found := _REPOSITORY.fullmatch(path):
            _only(method, "POST")
            return self._repository(found[1], found[2], await _body(receive))
        if path == INDEX:
            _only(method, "POST")
            return self._index(await _body(receive))
        if path == ALL_STATISTICS and "stats" not in self.station.kept:
            _only(method, "GET")
            return self._statistics(*self.station.kept.values())
        if found := _MODEL.fullmatch(path):
            kept = self._hosted_model(found[1])
            if found[2] == "/infer":
                _only(method, "POST")
                return await self._infer(kept, headers, receive)
            _only(method, "GET")
            if found[2] == "/stats":
                return self._statistics(kept)
            return self._ready(kept) if found[2] else self._model(kept)
        _only(method, "GET")
        return self._get_page(path)

    def _get_page(self, path: str) -> InferenceAnswer:
        models = self.station.kept.values()
        if path in ("/v2", "/v2/"):
            body = {"name": NAME, "version": VERSION, "extensions": EXTENSIONS}
            return InferenceAnswer(200, body)
        if path == "/v2/health/live":
            return InferenceAnswer(200, {"live": True})
        if path == "/v2/health/ready":
            ready = bool(models) and all(one.state != "loading" for one in models)
            return InferenceAnswer(200 if ready else 503, {"ready": ready})
        if path == "/stats":
            return InferenceAnswer(200, self.station.to_json())
        raise CallRefused("not-found", "There is no such address.")

    def _hosted_model(self, name: str) -> HostedModel:
        kept = self.station.kept.get(name)
        if kept is None:
            raise CallRefused("no-model", f"No model {name} is served here.")
        return kept

    def _ready(self, kept: HostedModel) -> InferenceAnswer:
        return InferenceAnswer(200 if kept.ready else 503, {"ready": kept.ready})

    def _statistics(self, *models: HostedModel) -> InferenceAnswer:
        told = [
            {"name": one.name, "version": VERSION, **one.counts.statistics_json()}
            for one in models
        ]
        return InferenceAnswer(200, {"model_stats": told})

    def _index(self, body: bytes) -> InferenceAnswer:
        """Return name and state of each model. Raises CallRefused: no valid body."""
        try:
            asked = json.loads(body) if body else {}
            only_ready = asked.get("ready", False)
            if type(only_ready) is not bool:
                raise ValueError("ready is no boolean")
        except (ValueError, AttributeError, RecursionError) as error:
            raise CallRefused("bad-request", f"The body: {error}") from None
        told = [
            {
                "name": one.name,
                "version": VERSION,
                "state": _STATES.get(one.state, "UNAVAILABLE"),
                "reason": one.note,
            }
            for one in self.station.kept.values()
            if one.ready or not only_ready
        ]
        # The protocol's answer is the list itself.
        return InferenceAnswer(200, json.dumps(told).encode())

    def _model(self, kept: HostedModel) -> InferenceAnswer:
        model = kept.model
        if model is None:
            raise self._not_ready(kept)
        body = {
            "name": kept.name,
            "versions": [VERSION],
            "platform": "onnxruntime_onnx",
            "inputs": [one.to_json() for one in model.inputs],
            "outputs": [one.to_json() for one in model.outputs],
        }
        return InferenceAnswer(200, body)

    def _not_ready(self, kept: HostedModel) -> CallRefused:
        words = f": {kept.note}" if kept.note else ""
        return CallRefused(
            "not-ready", f"{kept.name} is not ready, it is {kept.state}{words}."
        )

    # --- inference -----------------------------------------------------------------

    async def _infer(
        self, kept: HostedModel, headers: Mapping[str, str], receive: Receive
    ) -> InferenceAnswer:
        body = await _body(receive)
        if kept.model is None or not kept.ready:
            raise self._not_ready(kept)
        try:
            asked = self._parse_request(kept, body, headers)
            way_ms = deadline_of(headers.get("x-way-ms"), "X-Way-Ms") or 0.0
        except TensorInvalid:
            kept.counts.wrong += 1
            raise
        waiting = self.station.let_in(kept, asked, way_ms=way_ms)
        inference = asyncio.ensure_future(self.station.answered(waiting))
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({inference, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not inference.done():
                raise CallRefused(
                    "client-left", "The client closed the connection before the answer."
                )
            return self._finish_request(kept, asked, inference)
        finally:
            for task in (inference, gone):
                task.cancel()
            await asyncio.gather(inference, gone, return_exceptions=True)

    def _parse_request(
        self, kept: HostedModel, body: bytes, headers: Mapping[str, str]
    ) -> InferenceRequest:
        """Read a request. Raises TensorInvalid, or CallRefused if the model failed."""
        assert kept.model is not None
        length = headers.get(LENGTH_HEADER)
        if length is not None and not (length.isdecimal() and len(length) < 12):
            raise TensorInvalid("Inference-Header-Content-Length", "is no length")
        asked = read_request(
            body,
            None if length is None else int(length),
            kept.model.inputs,
            kept.model.outputs,
        )
        header = deadline_of(headers.get("x-deadline-ms"), "X-Deadline-Ms")
        if asked.deadline_ms is None:
            asked.deadline_ms = header
        if kept.model.batches:
            rows = {value.shape[0] for value in asked.inputs.values()}
            placed = self.station.scheduler.placed.get(kept.name)
            if placed is None:
                raise self._not_ready(kept)
            most = placed.most_rows
            if len(rows) != 1 or not 1 <= next(iter(rows)) <= most:
                raise TensorInvalid(
                    "inputs[0].shape",
                    f"the first dimension must be the same everywhere, 1 to {most}",
                )
        return asked

    def _finish_request(
        self,
        kept: HostedModel,
        asked: InferenceRequest,
        inference: "asyncio.Future[Any]",
    ) -> InferenceAnswer:
        try:
            answered = inference.result()
        except EngineError as error:
            raise CallRefused("failed", f"{kept.name} failed on it: {error}") from None
        facts = {
            "predicted_ms": round(answered.predicted_ms, 3),
            "actual_ms": round(answered.actual_ms, 3),
            "run_ms": round(answered.run_ms, 3),
            "batch": answered.batch,
            "in_time": answered.in_time,
        }
        body, length = write_answer(kept.name, asked, answered.results, facts)
        headers = {"x-served-ms": f"{answered.actual_ms:.3f}"}
        if length is not None:
            headers[LENGTH_HEADER] = str(length)
            headers["content-type"] = "application/octet-stream"
        return InferenceAnswer(200, body, headers)

    # --- for the node
    # -------------------------------------------------------------------

    def _repository(self, name: str, act: str, body: bytes) -> InferenceAnswer:
        if act == "unload":
            return InferenceAnswer(200, {"gone": self.station.let_go(name)})
        try:
            said = json.loads(body)
            kept = HostedModel(
                name=name,
                path=Path(str(said["path"])),
                memory_bytes=int(said["memory_bytes"]),
                most_batch=int(said["most_batch"]),
                deadline_ms=float(said["deadline_ms"]),
            )
            if why := said.get("failed"):
                kept.state, kept.note = "failed", str(why)
        except (ValueError, KeyError, TypeError) as error:
            raise CallRefused("bad-request", f"{error!r}") from None
        try:
            self.station.take(kept)
        except ServingError as error:
            raise CallRefused("model-refused", f"{error}") from None
        return InferenceAnswer(200, {"state": kept.state})


def _only(method: str, wanted: str) -> None:
    if method != wanted and not (method == "HEAD" and wanted == "GET"):
        raise CallRefused("method", f"Only {wanted} is answered here.", allow=wanted)


async def _body(receive: Receive) -> bytes:
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise CallRefused(
                "client-left", "The client closed the connection within the request."
            )
        part = message.get("body", b"")
        size += len(part)
        if size > MOST_BODY_BYTES:
            raise CallRefused("too-large", f"At most {MOST_BODY_BYTES} bytes.")
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def _disconnected(receive: Receive) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            continue
