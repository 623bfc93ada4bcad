"""A station with ONNX Runtime: turns in a small room, shared runs, mistakes."""

import asyncio
import time
from contextlib import asynccontextmanager

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from placement.agent.serving.batch import HostedModel
from placement.agent.serving.executor import ServingExecutor
from placement.agent.serving.onnx_engine import Engine, EngineError
from placement.agent.serving.tensors import InferenceRequest
from placement.protocol.call_refusal import CallRefused
from placement.protocol.serving_times import ServingError
from tests.placement.serving.networks import expected, mlp_bytes

MIB = 2**20


@asynccontextmanager
async def station(room_mib=64):
    engine = Engine(cuda=False, threads=1, room_bytes=room_mib * MIB)
    made = ServingExecutor(engine, room_bytes=room_mib * MIB)
    loop = asyncio.create_task(made.run())
    yield made
    made.stop()
    await loop


async def take(made, path, name, data, *, mib=40, most_batch=4):
    (path / name).write_bytes(data)
    kept = HostedModel(name, path / name, mib * MIB, most_batch, deadline_ms=20_000)
    made.take(kept)
    for _ in range(4000):
        if kept.state != "loading":
            return kept
        await asyncio.sleep(0.02)
    raise AssertionError("it does not load")


def ask(value, **more):
    return InferenceRequest(
        inputs={"x": np.asarray(value, np.float32)}, outputs=("y",), **more
    )


def graph_bytes(nodes, x_shape, y_shape, weights=(), kind=TensorProto.FLOAT):
    x = helper.make_tensor_value_info("x", kind, x_shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, y_shape)
    graph = helper.make_graph(nodes, "g", [x], [y], list(weights))
    sets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=sets, ir_version=9)
    onnx.checker.check_model(model)
    return model.SerializeToString()


async def test_models_take_turns_share_runs_and_are_let_go(tmp_path):
    data = mlp_bytes()
    async with station() as made:
        first = await take(made, tmp_path, "first", data)
        second = await take(made, tmp_path, "second", data)
        assert made.scheduler.loaded == ["second"], "both do not fit"
        assert first.model.batches and first.ready and second.ready

        rows = np.random.default_rng(1).standard_normal((6, 1, 4)).astype("f4")
        answers = await asyncio.gather(
            *(made.infer(first, ask(row), way_ms=0.0) for row in rows)
        )
        for row, answer in zip(rows, answers, strict=True):
            assert np.allclose(answer.results["y"], expected(data, row), atol=1e-5)
        assert made.scheduler.loaded == ["first"]
        assert max(answer.batch for answer in answers) > 1, "requests share a run"
        assert await made.infer(second, ask(rows[0]), way_ms=0.0)
        told = made.to_json()
        assert told["loaded_bytes"] <= told["room_bytes"]
        assert sum(one["in_time"] for one in told["models"]) == 7

        with pytest.raises(CallRefused) as away:
            hurry = ask(rows[0], deadline_ms=0.001)
            await made.infer(first, hurry, way_ms=0.0)
        assert away.value.code == "deadline"
        assert away.value.members["predicted_ms"] > 0.001
        with pytest.raises(ServingError, match="larger than the room"):
            made.take(HostedModel("big", tmp_path, 65 * MIB, 1, 1.0))
        assert made.let_go("first") and not made.let_go("first")
        with pytest.raises(CallRefused):
            await made.infer(first, ask(rows[0]), way_ms=0.0)


async def test_rows_that_mix_are_never_put_together_and_mistakes_stay_alone(tmp_path):
    mean = helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1)
    mixed = graph_bytes(
        [mean, helper.make_node("Add", ["x", "m"], ["y"])], ["n", 2], ["n", 2]
    )
    table = helper.make_tensor("t", TensorProto.FLOAT, [3, 2], [1.0] * 6)
    gather = helper.make_node("Gather", ["t", "i"], ["y"], axis=0)
    cast = helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64)
    fragile = graph_bytes([cast, gather], ["n"], ["n", 2], [table])
    async with station() as made:
        kept = await take(made, tmp_path, "mixed", mixed, mib=1)
        assert not kept.model.batches
        assert "depends on the others" in kept.note

        kept = await take(made, tmp_path, "fragile", fragile, mib=1)
        assert kept.model.batches, kept.note
        asked = [ask([1.0]), ask([99.0]), ask([2.0])]
        found = await asyncio.gather(
            *(made.infer(kept, one, way_ms=0.0) for one in asked),
            return_exceptions=True,
        )
        assert isinstance(found[1], EngineError)
        assert found[0].results["y"].shape == found[2].results["y"].shape == (1, 2)

        broken = await take(made, tmp_path, "broken", b"no model", mib=1)
        assert broken.state == "failed"
        assert broken.note


async def test_runs_go_on_while_the_event_loop_is_busy(tmp_path):
    async with station() as made:
        kept = await take(made, tmp_path, "mlp", mlp_bytes(), most_batch=1)
        asks = [
            asyncio.create_task(made.infer(kept, ask([[1.0] * 4]), way_ms=0.0))
            for _ in range(20)
        ]
        await asyncio.sleep(0)
        assert made.scheduler.waiting > 0
        until = time.perf_counter() + 60
        while made.scheduler.waiting and time.perf_counter() < until:
            time.sleep(0.01)
        assert made.scheduler.waiting == 0, "the runtime does not wait for the loop"
        # On a fast machine all runs end within a nap, and the loop was hardly busy.
        time.sleep(0.1)
        assert not any(one.done() for one in asks)
        answers = await asyncio.gather(*asks)
        assert kept.counts.runs == 20
        assert all(one.run_ms <= one.actual_ms for one in answers)
        # What the loop let them wait is known, and counts for who comes next.
        now = made.clock()
        assert made._lag.seconds(now + 1) > 0.005


async def test_who_does_not_wait_any_more_is_withdrawn(tmp_path):
    async with station() as made:
        kept = await take(made, tmp_path, "mlp", mlp_bytes(), mib=1)
        made.scheduler.busy(made.clock() + 10)
        gone = asyncio.create_task(made.infer(kept, ask([[1.0] * 4]), way_ms=0.0))
        await asyncio.sleep(0.05)
        assert made.scheduler.waiting == len(made._waiting) == 1
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        assert made.scheduler.waiting == len(made._waiting) == 0
