"""LoRA and quantized weights of a Plan, as PEFT and transformers read them.

Fields: PEFT 0.21 "LoraConfig", transformers 5.23 "BitsAndBytesConfig". The Plan has
rank and layers of the adapters and the form of the weights. It does not have alpha and
dropout, which take no memory: alpha is twice the rank, and dropout is 0.
"""

from typing import Any

from placement.planner.launch.files.launch_file_error import NoSuchLaunch, RenderedFile
from placement.planner.model.spec import ModelSpec
from placement.planner.values.plan import Plan
from telemetry.protocol.sentences import sentence

TASKS = {
    "causal_lm": "CAUSAL_LM",
    "seq2seq_lm": "SEQ_2_SEQ_LM",
    "sequence_classification": "SEQ_CLS",
}
"""Head of a model -> PEFT's name of the task. Others need none."""
ALPHA_RATIO = 2
COMPUTE = {
    "bf16": "bfloat16",
    "autocast_bf16": "bfloat16",
    "megatron_bf16": "bfloat16",
    "fp16": "float16",
    "autocast_fp16": "float16",
    "mixed_fp16": "float16",
    "fp32": "float32",
}
"""Precision -> the type in which quantized weights are multiplied."""
LOADED = {"bf16": "bfloat16", "fp16": "float16"}
"""Precision -> `dtype` of `from_pretrained`. The others begin from fp32 weights."""
LOADED_TO_INFER = COMPUTE | {"autocast_bf16": "float32", "autocast_fp16": "float32"}


def weights_of(plan: Plan, spec: ModelSpec) -> str:
    """Return the form of the weights after loading: nf4, int8, full.

    A model whose own files are quantized counts as full, because it has its own
    configuration.
    """
    planned = str(plan.launch.get("weights", "full"))
    return planned if planned != "full" else spec.quantized_as or "full"


def dtype_of(plan: Plan) -> str:
    """Return `dtype` of `from_pretrained` for a Plan."""
    precision = plan.launch["precision"]
    if plan.launch["task"] != "train":
        return LOADED_TO_INFER[precision]
    return LOADED.get(precision, "float32")


def adapter_config(plan: Plan, spec: ModelSpec) -> RenderedFile | None:
    """Return `LoraConfig` of a Plan whose model has adapters; None otherwise."""
    shape = spec.shape
    if shape is None or not shape.lora_rank:
        return None
    task = {"task_type": TASKS[spec.head]} if spec.head in TASKS else {}
    values: dict[str, Any] = {
        "peft_type": "LORA",
        **task,
        "r": shape.lora_rank,
        "lora_alpha": ALPHA_RATIO * shape.lora_rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(shape.lora_targets),
        "inference_mode": plan.launch["task"] != "train",
    }
    note = sentence("Set your own lora_alpha and lora_dropout: they take no memory.")
    return RenderedFile(values, (note,))


def quantization_config(plan: Plan, spec: ModelSpec) -> RenderedFile | None:
    """Return `BitsAndBytesConfig` of a Plan with quantized weights; None otherwise.

    Raises:
        NoSuchLaunch: weights in 8 bits that the ranks share.
    """
    weights = weights_of(plan, spec)
    if weights == "full":
        return None
    shared = plan.launch["zero_stage"] == 3
    values: dict[str, Any] = {"quant_method": "bitsandbytes"}
    if weights == "int8":
        if shared:
            raise NoSuchLaunch(
                sentence(
                    "bitsandbytes' weights in 8 bits cannot be shared out by FSDP or "
                    "ZeRO-3: plan with nf4."
                )
            )
        return RenderedFile(values | {"load_in_8bit": True})
    values |= {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": COMPUTE[plan.launch["precision"]],
    }
    if shared:
        # FSDP and ZeRO-3 flatten tensors of one type: that of the other weights.
        values["bnb_4bit_quant_storage"] = dtype_of(plan)
    return RenderedFile(values)
