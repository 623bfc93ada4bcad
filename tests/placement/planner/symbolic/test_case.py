"""A spec object is checked field by field before a process is started for it."""

import json

import pytest

from placement.planner.symbolic.case import Case, of_workload, partial_input, read_case
from placement.planner.values.errors import SpecInvalid
from placement.planner.values.workload import Workload
from tests.placement.planner.symbolic.rows import EXTRAS, LLAMA, ROWS


def test_every_row_is_read_and_survives_its_way_to_the_child():
    for spec in (*(row["spec"] for row in ROWS), *EXTRAS.values()):
        case = read_case(spec)
        assert Case.from_json(json.loads(json.dumps(case.to_json()))) == case


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": 3}, "model"),
        ({"model": {"torch": ["x"]}}, "model.torch"),
        (
            {"model": {"hf_class": "__import__", "config_class": "A", "config": {}}},
            "model.hf_class",
        ),
        ({"model": {"config": {}, "attn": "ring"}}, "model.attn"),
        ({"model": {"entry": "no colon"}}, "entry"),
        ({"input": {"kind": "smell"}}, "input.kind"),
        ({"input": {"kind": "lm", "batch": -1, "seq": 4, "vocab": 9}}, "input.batch"),
        ({"input": {"kind": "lm", "batch": 1, "seq": True, "vocab": 9}}, "input.seq"),
        (
            {"input": {"kind": "lm", "batch": 2**40, "seq": 4, "vocab": 9}},
            "input.batch",
        ),
        ({"precision": "fp8"}, "precision"),
        ({"optimizer": {"name": "adamx"}}, "optimizer.name"),
        ({"optimizer": {"name": "sgd", "momentum": "much"}}, "optimizer.momentum"),
        ({"grad_accum": 0.5}, "grad_accum"),
        ({"checkpointing": "some"}, "checkpointing"),
        ({"lora": {"rank": 0}}, "lora.rank"),
        ({"lora": 8}, "lora"),
        ({"freeze": [1]}, "freeze"),
        ({"strategy": "zero3"}, "strategy"),
        ({"accelerator": "abacus"}, "accelerator"),
    ],
)
def test_a_wrong_field_is_named(change, field):
    with pytest.raises(SpecInvalid) as refused:
        read_case(LLAMA | change)
    assert field in refused.value.fields


def test_unknown_fields_are_told_and_not_taken():
    assert read_case(LLAMA | {"weather": "fine"}).ignored == ("weather",)


def test_a_workload_becomes_a_case_of_one_replica():
    workload = Workload(
        batch=32, accumulation=2, optimizer="momentum", attention="math"
    )
    case = of_workload({"config": {"model_type": "gpt2"}}, {}, workload, replicas=4)
    assert case.input["batch"] == 4
    assert (case.optimizer, case.momentum_ratio) == ("sgd", 0.9)
    assert (case.accelerator, case.attention, case.ranks) == ("cuda", "math", 4)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"precision": "megatron_bf16"}, "precision"),
        ({"offload": "cpu"}, "offload"),
        ({"checkpointing": "selective"}, "checkpointing"),
        ({"loss": "fused"}, "loss"),
    ],
)
def test_what_is_not_followed_is_refused_by_name(change, field):
    with pytest.raises(SpecInvalid) as refused:
        of_workload({"config": {}}, {}, Workload(**change))
    assert field in refused.value.fields


def test_a_partial_batch_may_not_set_the_number_of_samples():
    assert partial_input({"kind": "cls_img", "size": 96})["size"] == 96
    for wrong in ({"batch": 3}, {"size": -1}, {"kind": "smell"}, []):
        with pytest.raises(SpecInvalid):
            partial_input(wrong)
