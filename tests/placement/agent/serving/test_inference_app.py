"""Statistics and index of the Open Inference Protocol, of a real station."""

import asyncio
import json

import numpy as np

from placement.agent.serving.batch import HostedModel
from placement.agent.serving.inference_app import ServeApp
from tests.placement.agent.serving.test_executor import MIB, station, take
from tests.placement.serving.networks import mlp_bytes


async def call(app, method, path, body=None):
    """Return status and JSON of one request."""
    sent = []
    data = b"" if body is None else json.dumps(body).encode()
    messages = [{"type": "http.request", "body": data}]

    async def receive():
        if not messages:
            await asyncio.get_running_loop().create_future()
        return messages.pop()

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "headers": []}
    await app(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


async def test_index_and_statistics_follow_the_protocol(tmp_path):
    async with station() as here:
        kept = await take(here, tmp_path, "mlp", mlp_bytes())
        broken = HostedModel("broken", tmp_path / "b", MIB, 4, deadline_ms=1000)
        broken.state, broken.note = "failed", "it is no model"
        here.kept["broken"] = broken
        app = ServeApp(here)

        index = await call(app, "POST", "/v2/repository/index")
        assert index == (
            200,
            [
                {"name": "mlp", "version": "1", "state": "READY", "reason": ""},
                {
                    "name": "broken",
                    "version": "1",
                    "state": "UNAVAILABLE",
                    "reason": "it is no model",
                },
            ],
        )
        _, ready = await call(app, "POST", "/v2/repository/index", {"ready": True})
        assert [one["name"] for one in ready] == ["mlp"]
        for body in ([], {"ready": 1}, "x"):
            assert (await call(app, "POST", "/v2/repository/index", body))[0] == 400
        assert (await call(app, "GET", "/v2/repository/index"))[0] == 405

        _, before = await call(app, "GET", "/v2/models/mlp/stats")
        assert before["model_stats"][0]["inference_count"] == 0
        rows = np.zeros((2, 4), np.float32).tolist()
        x = {"name": "x", "datatype": "FP32", "shape": [2, 4], "data": rows}
        answer = await call(app, "POST", "/v2/models/mlp/infer", {"inputs": [x]})
        assert answer[0] == 200, answer
        status, told = await call(app, "GET", "/v2/models/mlp/versions/1/stats")
        (one,) = told["model_stats"]
        assert (status, one["name"], one["version"]) == (200, "mlp", "1")
        assert (one["inference_count"], one["execution_count"]) == (2, 1)
        assert one["last_inference"] > 1_700_000_000_000, "milliseconds since 1970"
        stats = one["inference_stats"]
        assert {name: stats[name]["count"] for name in stats} == {
            **{"success": 1, "fail": 0, "queue": 1},
            **{"compute_input": 0, "compute_infer": 1, "compute_output": 0},
        }
        run = stats["compute_infer"]["ns"]
        assert 0 < run <= stats["success"]["ns"]
        assert stats["queue"]["ns"] + run <= stats["success"]["ns"] + 2
        assert [row["batch_size"] for row in one["batch_stats"]] == [2]
        status, both = await call(app, "GET", "/v2/models/stats")
        assert [row["name"] for row in both["model_stats"]] == ["mlp", "broken"]
        assert (await call(app, "GET", "/v2/models/no/stats"))[0] == 404
        del here.kept["broken"]
        assert kept.counts.runs == 1
