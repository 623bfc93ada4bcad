"""A small lab whose Gpus have fresh readings, for pages and plans."""

import json
import struct
import time
from dataclasses import replace

import redis
from django.test import Client
from django.utils import timezone

from placement.models import StoredPlan
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.values.workload import Workload
from placement.plans.service import make_plans, offered, save_plan
from reservations.models import User
from telemetry.inventory.queries import load_cluster
from telemetry.live import broadcast
from telemetry.models import Gpu
from telemetry.protocol.frame import Frame, FrameRow, encode
from telemetry.protocol.gpu_state import GpuState
from tests.factories import make_gpus, make_node, make_pool

GIB = 2**30
MIB = 2**20


def make_lab() -> list[Gpu]:
    """Make node-a with four Gpus of 80 GiB and node-b with two of 24 GiB."""
    make_gpus(4, make_node("node-a"))
    small = make_pool("RTX 3090 24GB", weight=3)
    make_gpus(
        2,
        make_node("node-b"),
        pool=small,
        name="NVIDIA GeForce RTX 3090",
        memory_total_bytes=24 * GIB,
    )
    return list(Gpu.objects.order_by("node__name", "index"))


def send_frame(
    client: redis.Redis, used_mib: dict[int, int] | None = None, at: float | None = None
) -> None:
    """Publish the present state of every Gpu: 400 MiB used by default."""
    cluster = load_cluster()
    rows = tuple(
        FrameRow(
            state=GpuState.FREE,
            util_pct=3,
            memory_used_mib=(used_mib or {}).get(number, 400),
            temperature_celsius=35,
            power_watts=60,
            sm_clock_mhz=210,
            age_seconds=0.4,
        )
        for number in range(Gpu.objects.count())
    )
    with client.pipeline() as pipe:
        broadcast.publish_roster(pipe, cluster.roster)
        broadcast.publish_frame(
            pipe, encode(Frame(cluster.roster_id, at or time.time(), rows))
        )
        pipe.execute()


def signed_in(user: object) -> Client:
    """Return a client with somebody's session."""
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")  # type: ignore[arg-type]
    return client


def safetensors_bytes(*, whole: bool) -> bytes:
    """Return a tiny .safetensors file, or its header alone."""
    tensors, offset = {}, 0
    for name, shape in (("a.weight", [64, 32]), ("a.bias", [64])):
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        tensors[name] = {
            "dtype": "F32",
            "shape": shape,
            "data_offsets": [offset, offset + size],
        }
        offset += size
    header = json.dumps(tensors).encode()
    data = bytes(offset) if whole else b""
    return struct.pack("<Q", len(header)) + header + data


def onnx_bytes() -> bytes:
    """Return a tiny ONNX model with one matrix."""
    import onnx
    from onnx import TensorProto, helper

    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 4], [0.0] * 16)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", [x], [y], [weight])
    model: onnx.ModelProto = helper.make_model(graph)
    return model.SerializeToString()


def plan_on(user: User, strategy: str, family: str = "gpt2") -> StoredPlan:
    """Keep the best Plan of a strategy on the Gpus that are offered now.

    It is for a model of GPT-2's size.
    """
    now = timezone.now()
    spec = replace(well_known_spec("gpt2"), family=family)
    found = offered(user=user, at=None, hours=4, now=now)
    plans = make_plans(
        spec=spec,
        workload=Workload(),
        offers=found.offers,
        limits=PlanLimits(strategies=(strategy,)),
    )
    chosen = next(plan for plan in plans.plans if plan.strategy == strategy)
    return save_plan(user=user, spec=spec, plan=chosen, now=now)
