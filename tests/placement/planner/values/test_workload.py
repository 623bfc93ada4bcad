"""Workloads check themselves and name the fault."""

import pytest

from placement.planner.values.errors import WorkloadInvalid
from placement.planner.values.workload import Workload

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": "8"}, "batch"),
        ({"batch": True}, "batch"),
        ({"batch": 10**9}, "batch"),
        ({"sequence_length": -1}, "sequence_length"),
        ({"precision": "fp4"}, "precision"),
        ({"precision": ["fp32"]}, "precision"),
        ({"optimizer": "adamx"}, "optimizer"),
        ({"task": "dream"}, "task"),
        ({"accumulation": 9, "batch": 8}, "accumulation"),
        ({"task": "infer", "accumulation": 2}, "accumulation"),
        ({"checkpointing": None}, "checkpointing"),
        ({"colour": "blue"}, "colour"),
        ({"offload": "moon"}, "offload"),
        ({"offload_parameters": True}, "offload_parameters"),
        ({"offload_parameters": "yes", "offload": "cpu"}, "offload_parameters"),
        ({"task": "infer", "offload": "cpu"}, "offload"),
        ({"precision": "megatron_bf16", "optimizer": "adafactor"}, "optimizer"),
        ({"keeps_gradients": 1}, "keeps_gradients"),
        ({"target_length": -1}, "target_length"),
        ({"kv_block_tokens": 0}, "kv_block_tokens"),
    ],
)
def test_a_bad_field_is_named(changes, field):
    with pytest.raises(WorkloadInvalid) as caught:
        Workload.from_json(changes)

    assert field in caught.value.fields


def test_a_workload_survives_json():
    workload = Workload(batch=3, precision="fp32", checkpointing="full")

    assert Workload.from_json(workload.to_json()) == workload


@pytest.mark.parametrize(
    ("batch", "accumulation", "replicas", "held"),
    [(8, 1, 1, 8), (8, 2, 2, 2), (9, 2, 2, 3), (1, 1, 4, 1)],
)
def test_a_gpu_holds_its_share_of_the_batch(batch, accumulation, replicas, held):
    workload = Workload(batch=batch, accumulation=accumulation)

    assert workload.microbatch(replicas) == held
