"""Traces reach a collector with the id of their request, and only where one is set."""

import gzip
import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

from gpuportal.checks import traces_can_be_exported
from gpuportal.logs import trace_export
from tests.gpuportal.logs.trace_site import CLIENT, REQUEST, SECRET, TRACE
from tests.gpuportal.running import ROOT, environ_for

pytestmark = pytest.mark.pure


class Collector(ThreadingHTTPServer):
    """Takes OTLP over HTTP, as a collector does."""

    def __init__(self) -> None:
        self.spans: dict[str, dict[str, str]] = {}
        self.services: set[str] = set()
        self.bytes = b""
        super().__init__(("127.0.0.1", 0), Taker)


class Taker(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.bytes += body
        sent = ExportTraceServiceRequest.FromString(body)
        for resource in sent.resource_spans:
            for one in resource.resource.attributes:
                if one.key == "service.name":
                    self.server.services.add(one.value.string_value)
            for scope in resource.scope_spans:
                for span in scope.spans:
                    found = {one.key: one.value.string_value for one in span.attributes}
                    found["trace"] = span.trace_id.hex()
                    self.server.spans[span.name] = found
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.end_headers()

    def log_message(self, *_args: object) -> None:
        """Write nothing."""


def run(folder, **environ: str) -> dict[str, object]:
    (folder / "static").mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpuportal.logs.trace_site"],
        cwd=ROOT,
        env=environ_for(folder, DJANGO_SETTINGS_MODULE="gpuportal.settings", **environ),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_requests_and_tasks_are_traced_with_the_id_of_their_request(tmp_path):
    with Collector() as collector:
        threading.Thread(target=collector.serve_forever, args=(0.05,)).start()
        address = f"http://127.0.0.1:{collector.server_port}"
        try:
            found = run(tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT=address)
        finally:
            collector.shutdown()
    spans = collector.spans
    route = "/node/v1/jobs/<int:pk>/script"
    asked = spans[f"GET {route}"]
    assert (asked["trace"], asked["http.route"]) == (TRACE, route)
    assert asked[trace_export.REQUEST_ATTRIBUTE] == REQUEST
    # An address without a route gives no name, and monitoring's are left out.
    assert spans["GET"]["trace"] == TRACE
    assert not [name for name in spans if "healthz" in name]
    assert "websocket" in spans
    headers, line = found["headers"], found["line"]
    outer = spans["outer"]["trace"]
    assert headers["traceparent"].split("-")[1] == outer == line["trace_id"]
    task = spans["run/trace_site.work"]
    assert task["trace"] == outer
    assert task[trace_export.REQUEST_ATTRIBUTE] == line["request_id"]
    # Paths of invitations and calendars are secrets, and so are queries.
    assert spans["GET /welcome/<str:token>/"]["http.target"].endswith("<str:token>/")
    for secret in (SECRET, CLIENT):
        assert secret.encode() not in collector.bytes
    assert collector.services == {"gpuportal-web"}


def test_a_package_that_is_missing_is_said_and_stops_nothing(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    assert traces_can_be_exported() == [] and not trace_export.start_export("web")
    assert not caplog.text
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    (warning,) = traces_can_be_exported()
    assert warning.id == "gpuportal.W005" and "requirements-otel.txt" in warning.hint
    assert not trace_export.start_export("web")
    assert "requirements-otel.txt" in caplog.text
