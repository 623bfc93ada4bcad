"""Run by test_exact: builds configs on meta with the pinned transformers and counts.

Reads a JSON list of {"config", "lora"?: {"rank", "targets"}} from stdin and prints one
JSON list: parameters, trainable, tensors, largest, tied groups, sums by layer, linear
layers.
"""

import gc
import json
import sys
from unittest import mock

# A fifth of the time. Until the end the models take 400 MiB.
gc.disable()
# PEFT would import it, and it torch's compiler. No case is quantized.
sys.modules["bitsandbytes"] = None  # type: ignore[assignment]

from torch import nn  # noqa: E402

from placement.planner.sandbox.meta_model import spec_of_module  # noqa: E402
from placement.planner.sandbox.transformers_build import built  # noqa: E402
from tests.placement.planner.exact_cases import products  # noqa: E402


def counted(case):
    module = built(case["config"])
    spec = spec_of_module(module, name="m", source="meta")
    answer = {
        "class": type(module).__name__,
        "parameters": spec.parameter_count,
        "trainable": spec.trainable_count,
        "tensors": spec.tensor_count,
        "largest": max(layer.largest for layer in spec.layers),
        "tied": sorted(len(group) for group in spec.tied_groups),
        "blocks": [
            layer.parameters
            for layer in spec.layers
            if layer.kind not in ("embedding", "head")
        ],
        "linears": products(spec),
    }
    lora = case.get("lora")
    if lora:
        answer["lora"] = adapted(module, lora)
    return answer


def adapted(module, lora):
    from peft import LoraConfig, inject_adapter_in_model

    config = LoraConfig(r=lora["rank"], target_modules=lora["targets"])
    wrapped = inject_adapter_in_model(config, module)
    trained = [p for p in wrapped.parameters() if p.requires_grad]
    return {
        "parameters": sum(p.numel() for p in trained),
        "tensors": len(trained),
        "largest": max(p.numel() for p in trained),
    }


if __name__ == "__main__":
    # Weights on meta have no values, and to draw them takes a tenth of the time.
    with mock.patch.object(nn.Linear, "reset_parameters", lambda layer: None):
        print(json.dumps([counted(case) for case in json.load(sys.stdin)]))
