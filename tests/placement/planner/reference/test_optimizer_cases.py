"""Optimizers of the cases: the closed form against steps that torch's own code took.

The truths are peaks and optimizer states of the symbolic form (python -m
placement.planner estimate --spec FILE --method symbolic), which runs torch.optim 2.13.
"""

import pytest

from placement.planner.memory.layer_costs import layer_costs
from placement.planner.model.adaptation import adapted
from placement.planner.model.well_known import well_known_spec
from placement.planner.reference.memory_cases import closed_case
from placement.planner.values.errors import BadInput
from placement.planner.values.workload import Workload

pytestmark = pytest.mark.pure

LLAMA = {
    "model": {
        "hf_class": "LlamaForCausalLM",
        "config_class": "LlamaConfig",
        "config": {
            "hidden_size": 512,
            "intermediate_size": 1376,
            "num_hidden_layers": 6,
            "num_attention_heads": 8,
            "num_key_value_heads": 2,
            "vocab_size": 32000,
        },
    },
    "input": {"kind": "lm", "batch": 1, "seq": 64, "vocab": 32000},
    "precision": "fp32",
}


@pytest.mark.parametrize(
    ("optimizer", "accelerator", "peak", "state"),
    [
        ({"name": "adamw"}, "cpu", 921_283_556, 395_104_484),
        ({"name": "adamw"}, "cuda", 987_791_360, 395_104_484),
        ({"name": "adamw", "foreach": True}, "cpu", 987_761_636, 395_104_484),
        ({"name": "adamw", "fused": True}, "cuda", 790_340_588, 395_104_484),
        ({"name": "rmsprop"}, "cpu", 659_241_956, 197_552_356),
        ({"name": "rmsprop"}, "cuda", 790_239_232, 197_552_356),
        ({"name": "lion"}, "cuda", 723_731_968, 197_552_128),
        ({"name": "muon"}, "cpu", 854_829_884, 328_650_812),
        ({"name": "muon"}, "cuda", 854_862_848, 328_650_812),
        ({"name": "adamw8bit"}, "cuda", 495_606_272, 100_359_168),
        ({"name": "lion8bit"}, "cuda", 445_422_080, 50_179_584),
        ({"name": "rmsprop8bit"}, "cpu", 445_415_688, 50_179_584),
    ],
)
def test_an_optimizer_is_counted_as_torch_steps_it(optimizer, accelerator, peak, state):
    told = closed_case(LLAMA | {"optimizer": optimizer, "accelerator": accelerator})

    assert told["peak_bytes"] == pytest.approx(peak, rel=0.002)
    # bitsandbytes keeps small tensors in fp32, which the closed form does not count.
    within = 0 if "8bit" not in optimizer["name"] else 40_000
    assert told["opt_state_bytes"] == pytest.approx(state, abs=within)


@pytest.mark.parametrize("how", [{"optimizer": {"name": "none"}}, {"train": False}])
def test_a_case_without_an_optimizer_is_inference(how):
    told = closed_case(LLAMA | how)

    assert told["grad_bytes"] == told["opt_state_bytes"] == 0
    assert list(told["phase_peak_bytes"]) == ["fwd"]
    assert told["param_bytes"] < told["peak_bytes"] < 1.2 * told["param_bytes"]


def test_a_case_that_trains_must_name_its_optimizer():
    with pytest.raises(BadInput, match="optimizer"):
        closed_case(LLAMA)
    with pytest.raises(BadInput, match="optimizer"):
        closed_case(LLAMA | {"optimizer": {"name": "adamx"}})


@pytest.mark.parametrize("weights", ["full", "nf4"])
def test_frozen_weights_take_no_operations_for_their_gradients(weights):
    spec = well_known_spec("llama-3-8b")
    workload = Workload(precision="bf16", batch=1)

    def backward_per_forward(model):
        costs = layer_costs(model, workload, microbatch=1)
        forward = sum(cost.forward_flops for cost in costs)
        return sum(cost.backward_flops for cost in costs) / forward

    lora = adapted(spec, weights=weights, lora_rank=16, lora_targets=())
    assert backward_per_forward(spec) == 2.0
    # The gradients of the inputs, attention's scores again, and the adapters' own.
    assert backward_per_forward(lora) == pytest.approx(1.02, abs=0.01)
