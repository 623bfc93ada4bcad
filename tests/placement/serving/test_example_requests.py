"""The example command of a served model, run by a real shell."""

import json
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from placement.agent.serving.batch import AdmittedRequest, HostedModel, turned_away
from placement.agent.serving.deadline_scheduler import AdmissionVerdict
from placement.serving.example_requests import curl_command, example_request, is_inline

SMALL = [{"name": 'it\'s "x" $HOME', "datatype": "FP32", "shape": [-1, 4]}]
IMAGE = [{"name": "x", "datatype": "FP32", "shape": [-1, 3, 64, 64]}]


@pytest.fixture
def echo():
    """A server that records its requests."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            size = int(self.headers["Content-Length"])
            got.append((self.path, dict(self.headers), self.rfile.read(size)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/serve/1/v2", got
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("inputs", [SMALL, IMAGE], ids=["inline", "file"])
def test_a_shell_sends_what_the_command_says(tmp_path, echo, inputs):
    endpoint, got = echo
    body = example_request(inputs)
    assert is_inline(body) == (inputs is SMALL)
    (tmp_path / "request.json").write_text(json.dumps(body))
    done = subprocess.run(
        ["sh", "-c", curl_command(endpoint, "mlp", body)],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "TOKEN": "gp_x"},
        capture_output=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    path, headers, sent = got[0]
    assert path == "/serve/1/v2/models/mlp/infer"
    assert headers["Authorization"] == "Bearer gp_x"
    assert json.loads(sent) == body


def test_huge_inputs_have_no_example():
    assert (
        example_request([{"name": "x", "datatype": "FP32", "shape": [2**21]}]) is None
    )


def test_a_refusal_says_deadline_need_and_parts(tmp_path):
    kept = HostedModel("mlp", tmp_path, 1, 1, 1000.0)
    waiting = AdmittedRequest(None, None, kept, within_ms=-70.4, answer=None)
    waiting.predicted_ms = 0.0123
    away = turned_away(waiting, AdmissionVerdict.TOO_LATE, 120.4, 0.0123)
    assert f"{away}" == (
        "The deadline of 50 ms cannot be met: about 120 ms are needed "
        "(network 120 ms, model 0.01 ms)."
    )
    waiting.predicted_ms = 80.0
    away = turned_away(waiting, AdmissionVerdict.FULL, 20.0, 8.0)
    assert "Too many requests are waiting." in f"{away}"
    assert "(network 20 ms, queue 72 ms, model 8.0 ms)" in f"{away}"
