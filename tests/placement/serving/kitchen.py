"""A node that really serves, for tests: keeper, shim, server, tunnel; and models."""

import json
import time
from typing import Any

import redis
from django.utils import timezone

from gpuportal.node_settings import NodeSettings
from placement import services, signing
from placement.models import Job
from placement.runners.keeper import JobKeeper
from placement.runners.orderdesk import OrderDesk
from placement.services import ordering, ticking
from telemetry.models import Node


def mlp_bytes(
    *, inputs: int = 4, outputs: int = 3, batch: object = "batch", hidden: int = 8
) -> bytes:
    """A tiny network of two layers, made by code; the same for the same sizes."""
    import numpy as np
    from onnx import TensorProto, helper

    noise = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> Any:
        values = noise.standard_normal(shape).astype("float32").ravel().tolist()
        return helper.make_tensor(name, TensorProto.FLOAT, shape, values)

    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, inputs])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, outputs])
    steps = [
        helper.make_node("MatMul", ["x", "w1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
    ]
    weights = [weight("w1", inputs, hidden), weight("w2", hidden, outputs)]
    graph = helper.make_graph(steps, "mlp", [x], [y], weights)
    sets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=9)
    return bytes(model.SerializeToString())


def expected(data: bytes, rows: Any) -> Any:
    """What the network gives, by ONNX Runtime itself."""
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.asarray(rows, dtype=np.float32)})[0]


class Kitchen:
    """One node's worker without Celery: orders in by hand, facts out by hand."""

    def __init__(self, settings: NodeSettings, client: redis.Redis) -> None:
        self.settings, self.redis = settings, client
        self.desk = OrderDesk(settings, publish=lambda fact: None)
        self.keeper = JobKeeper(settings)
        self.seen = "0"
        self.keeper.start()

    def order(self, job: Job) -> None:
        """Send a Job's order as the tick does, and take it here."""
        ticking.tick(timezone.now())
        job.refresh_from_db()
        made = ordering.start_order(job, now=timezone.now())
        payload = made.payload()
        assert self.desk.take(payload, signing.sign(payload)), made

    def tell(self) -> None:
        """Bring the node's facts to the web, as ingest does."""
        stream = f"facts.{self.settings.name}"
        for _, entries in self.redis.xread({stream: self.seen}) or []:
            for key, fields in entries:
                self.seen = key
                fact = json.loads(fields[b"m"])
                services.record_fact(self.settings.name, fact, timezone.now())

    def until_running(self, job: Job, seconds: float = 20.0) -> None:
        """Wait until the Job runs by what the node told."""
        end = time.monotonic() + seconds
        while job.state != "running":
            assert time.monotonic() < end, (job.state, job.reason)
            time.sleep(0.05)
            self.tell()
            job.refresh_from_db()

    def stop(self, job: Job) -> None:
        """Send the order that ends a Job, and wait for what comes of it."""
        job.refresh_from_db()
        payload = ordering.stop_order(job, now=timezone.now()).payload()
        assert self.desk.take(payload, signing.sign(payload))
        end = time.monotonic() + 15
        while job.state == "stopping":
            assert time.monotonic() < end, job.reason
            time.sleep(0.05)
            self.tell()
            job.refresh_from_db()
        assert job.state == "stopped", job.reason

    def close(self) -> None:
        """Stop the keeper; Jobs are ended by the node fixture."""
        self.keeper.stop()


def token_of(node: Node, settings: NodeSettings) -> None:
    """Give a node's row the token that its settings show."""
    text = node.new_token()
    node.save()
    settings.token_file.write_text(text)
