"""The closed form's answer to a `spec` object of the memory reference cases.

`closed_case` reads the published fields of the cases: a model class with its config or
arguments, the batch, precision, optimizer, checkpointing and accumulation, as run by
one CPU process (for-loop optimizer, SDPA's CPU kernels, no CUDA context).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from placement.planner.memory.autograd_replay import replay
from placement.planner.memory.estimate import estimate
from placement.planner.memory.layer_costs import LayerCost, new_tape
from placement.planner.memory.parameter_states import widths
from placement.planner.memory.rank_states import DEEPSPEED_DEFAULT_BUCKET
from placement.planner.memory.step_phases import rank_phases
from placement.planner.model.adaptation import with_lora
from placement.planner.model.families.config_json import FAMILIES, parse_config
from placement.planner.model.frozen_parameters import with_frozen
from placement.planner.model.sharding import ONE_RANK, Sharding
from placement.planner.model.spec import MAX_LAYERS, ModelSpec
from placement.planner.reference.plain_networks import plain_net
from placement.planner.reference.residual_network import (
    ResidualNet,
    net_cost,
    residual_costs,
)
from placement.planner.values.errors import SpecInvalid
from placement.planner.values.strategies import DDP, FSDP, ZERO1, ZERO2, ZERO3
from placement.planner.values.workload import Workload

KINDS = {
    "lm": ("batch", "seq"),
    "mlm": ("batch", "seq"),
    "seqcls": ("batch", "seq"),
    "seq2seq": ("batch", "seq", "tgt"),
    "lm_plain": ("batch", "seq"),
    "cls_img": ("batch", "size"),
    "seg_img": ("batch", "size"),
    "cls_vec": ("batch", "dim"),
}
"""Required fields of each kind of batch."""
MOST_OF_INPUT = 2**22
READ = {
    "id",
    "model",
    "input",
    "precision",
    "optimizer",
    "checkpointing",
    "grad_accum",
    "lora",
    "freeze",
    "set_to_none",
    "train",
    "accelerator",
    "attention",
}


@dataclass(frozen=True, slots=True)
class MemoryCase:
    """A parsed case: the model (in one of two forms), its Workload and its batch."""

    spec: ModelSpec | None
    workload: Workload
    given: Mapping[str, Any]
    input_bytes: int


def closed_case(
    spec_object: Mapping[str, Any], clock: Callable[[], float] | None = None
) -> dict[str, Any]:
    """Return the bytes of one case by the closed form, with the keys of the reference
    data.

    `clock`: a caller's clock, to add the elapsed `seconds`. Raises SpecInvalid,
    UnknownFamily or WorkloadInvalid by field. Takes less than 5 milliseconds.
    """
    started = clock() if clock else 0.0
    answer = _answer(spec_object)
    answer["method"] = "closed"
    if clock:
        answer["seconds"] = clock() - started
    return answer


def _answer(spec_object: Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(spec_object, Mapping) and "world" in spec_object:
        return _rank_answer(spec_object)
    case = read_case(spec_object)
    answer = _plain_answer(case) if case.spec is None else _family_answer(case)
    ignored = sorted(str(name)[:40] for name in spec_object if name not in READ)
    if ignored:
        answer["ignored"] = ignored
    return answer


def read_case(spec_object: Mapping[str, Any]) -> MemoryCase:
    """Return the model and Workload of a case."""
    if not isinstance(spec_object, Mapping):
        raise SpecInvalid({"spec": "must be an object"})
    wanted = ["model", "input"]
    if spec_object.get("train") is not False or "optimizer" in spec_object:
        wanted.append("optimizer")
    for name in wanted:
        if not isinstance(spec_object.get(name), Mapping):
            raise SpecInvalid({name: "must be an object"})
    model, given = spec_object["model"], spec_object["input"]
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise SpecInvalid({"input.kind": f"must be one of {', '.join(KINDS)}"})
    _check_whole(given, "input.", KINDS[kind], least=1)
    if "torch" in model:
        if not isinstance(model["torch"], str):
            raise SpecInvalid({"model.torch": "must be the name of a class"})
        if not isinstance(model.get("args", {}), Mapping):
            raise SpecInvalid({"model.args": "must be an object"})
    spec = None if "torch" in model else model_of(spec_object)
    workload = workload_of(spec_object, spec)
    return MemoryCase(spec, workload, spec_object, _input_bytes(given, workload))


def _check_whole(
    given: Mapping[str, Any], path: str, names: Iterable[str], *, least: int
) -> None:
    """Raise SpecInvalid unless the value is a whole number within its bounds."""
    wrong = {
        f"{path}{name}": f"must be a whole number from {least} to {MOST_OF_INPUT:,}"
        for name in names
        if type(given.get(name)) is not int or not least <= given[name] <= MOST_OF_INPUT
    }
    if wrong:
        raise SpecInvalid(wrong)


def model_of(spec_object: Mapping[str, Any]) -> ModelSpec:
    """Return the ModelSpec of a Hugging Face class and its config, adapters
    included.
    """
    model = spec_object["model"]
    config = model.get("config", {})
    name = model.get("config_class")
    if not isinstance(name, str) or not isinstance(config, Mapping):
        raise SpecInvalid({"model": "needs config_class and config, or torch and args"})
    spec = parse_config(
        {
            **config,
            "model_type": family_of(name),
            "architectures": [model.get("hf_class", "")],
        }
    )
    lora = spec_object.get("lora") or model.get("lora")
    if isinstance(lora, Mapping):
        targets = lora.get("targets") or lora.get("target_modules") or ()
        spec = with_lora(
            spec,
            rank=lora.get("r", lora.get("rank", 8)),
            targets=tuple(targets) or ("q_proj", "v_proj"),
        )
    names = spec_object.get("freeze") or ()
    if not isinstance(names, list | tuple) or any(type(n) is not str for n in names):
        raise SpecInvalid({"freeze": "must be a list of names"})
    return with_frozen(spec, names)


def family_of(config_class: str) -> str:
    """Return the family of a config class: GPTNeoXConfig is gpt_neox."""
    wanted = config_class.removesuffix("Config").lower()
    for family in FAMILIES:
        if family.replace("_", "").replace("-", "") == wanted:
            return family
    return wanted


def workload_of(spec_object: Mapping[str, Any], spec: ModelSpec | None) -> Workload:
    """Return the Workload of a case, as run by one CPU process."""
    given, optimizer = spec_object["input"], spec_object.get("optimizer", {})
    name = optimizer.get("name")
    trains = name != "none" and spec_object.get("train") is not False
    accelerator = spec_object.get("accelerator") or "cpu"
    if name == "sgd" and optimizer.get("momentum"):
        name = "momentum"
    pieces = spec_object.get("grad_accum") or 1
    batch = given.get("batch")
    if type(batch) is not int or type(pieces) is not int:
        raise SpecInvalid({"input.batch": "and grad_accum must be whole numbers"})
    return Workload.from_json(
        {
            "batch": batch * pieces,
            "accumulation": pieces,
            "sequence_length": given.get("seq", 1),
            "target_length": given.get("tgt", 0),
            "precision": spec_object.get("precision"),
            "task": "train" if trains else "infer",
            "optimizer": name if trains else "adamw",
            "checkpointing": "full" if spec_object.get("checkpointing") else "none",
            "attention": _attention(spec_object, spec),
            "keeps_gradients": spec_object.get("set_to_none") is False,
            "optimizer_loop": _loop(optimizer, accelerator),
            "accelerator": accelerator,
        }
    )


def _loop(optimizer: Mapping[str, Any], accelerator: object) -> object:
    """Return how the optimizer steps.

    If the case does not set it, it is torch's default: foreach on CUDA
    (torch/optim/optimizer.py, _default_to_fused_or_foreach).
    """
    if optimizer.get("fused"):
        return "fused"
    if optimizer.get("foreach") is not None:
        return "foreach" if optimizer["foreach"] else "forloop"
    usual = "forloop" if accelerator == "cpu" else "foreach"
    return optimizer.get("impl") or optimizer.get("loop") or usual


def _attention(spec_object: Mapping[str, Any], spec: ModelSpec | None) -> str:
    """Return the attention: SDPA on CPU uses its flash kernel unless there is
    dropout.
    """
    if spec_object["model"].get("attn") == "eager":
        return "eager"
    if spec_object.get("accelerator") == "cuda":
        chosen = spec_object.get("attention") or "auto"
        return "flash" if chosen == "auto" else str(chosen)
    dropped = spec is not None and spec.shape and spec.shape.attention_dropout_ratio
    return "math" if dropped else "flash"


def _input_bytes(given: Mapping[str, Any], workload: Workload) -> int:
    """Return the bytes of one microbatch of `make_batch`, labels included."""
    batch = given["batch"]
    width = int(4 if widths(workload).autocast else widths(workload).compute)
    kind = given["kind"]
    if kind in ("lm", "mlm", "lm_plain"):
        return int(8 * batch * given["seq"])
    if kind == "seqcls":
        return int(8 * batch * given["seq"] + 8 * batch)
    if kind == "seq2seq":
        return int(8 * batch * (given["seq"] + given["tgt"]))
    if kind == "cls_vec":
        return int(batch * given["dim"] * width + 8 * batch)
    labels = 8 * batch * (given["size"] ** 2 if kind == "seg_img" else 1)
    return int(batch * 3 * given["size"] ** 2 * width + labels)


def _family_answer(case: MemoryCase) -> dict[str, Any]:
    assert case.spec is not None
    made = estimate(case.spec, case.workload)
    kept = sum(layer.activation_bytes for layer in made.layers)
    states = made.parameter_bytes + made.gradient_bytes + made.optimizer_bytes
    if not case.workload.trains:
        forward = made.phase_bytes["forward"]
        return {
            "peak_bytes": forward,
            "param_bytes": made.parameter_bytes,
            "grad_bytes": 0,
            "opt_state_bytes": 0,
            "activation_bytes": kept,
            "phase_peak_bytes": {"fwd": forward},
        }
    phases = {
        "fwd": made.phase_bytes["forward"],
        "bwd": made.phase_bytes["backward"],
        "opt": made.phase_bytes["optimizer"] + case.input_bytes,
        "zero": states + case.input_bytes,
    }
    return {
        "peak_bytes": max(phases.values()),
        "param_bytes": made.parameter_bytes,
        "grad_bytes": made.gradient_bytes,
        "opt_state_bytes": made.optimizer_bytes,
        "activation_bytes": kept,
        "phase_peak_bytes": phases,
    }


SHARDINGS: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": DDP.key, "bucket_view": False},
    "fsdp2": {"strategy": FSDP.key},
    "ds1": {"strategy": ZERO1.key, "engine": "deepspeed"},
    "ds2": {"strategy": ZERO2.key},
    "ds3": {"strategy": ZERO3.key},
}
SEQUENCES_PER_RANK = 4
"""The batch of the distributed cases."""


def rank_case(
    given: Mapping[str, Any],
) -> tuple[list[LayerCost], Workload, Sharding]:
    """Parse a distributed case: the residual net on one of `world` gloo ranks."""
    kind, world = given.get("kind"), given.get("world")
    if not isinstance(kind, str) or kind not in SHARDINGS:
        raise SpecInvalid({"kind": f"must be one of {', '.join(SHARDINGS)}"})
    if type(world) is not int or not 1 <= world <= 4096:
        raise SpecInvalid({"world": "must be a whole number of ranks"})
    net = _residual_net(given.get("sizes", {}))
    bucket = given.get("bucket_elements")
    if isinstance(bucket, str):
        bucket = None  # such as "framework default"
    if bucket is not None and (type(bucket) is not int or not 0 <= bucket <= 2**40):
        raise SpecInvalid({"bucket_elements": "must be a whole number from 0"})
    changes = dict(SHARDINGS[kind])
    if kind.startswith("ds"):
        default = DEEPSPEED_DEFAULT_BUCKET
        changes["bucket_elements"] = default if bucket is None else bucket
        changes["overlap"] = bool(given.get("overlap", False))
    if "view" in given:
        changes["bucket_view"] = bool(given["view"])
    sharding = Sharding(data_degree=world, **changes)
    amounts = {"accumulation": 1, "batch": SEQUENCES_PER_RANK, **given}
    _check_whole(amounts, "", ("accumulation", "batch"), least=1)
    pieces, sequences = amounts["accumulation"], amounts["batch"]
    precision = given.get("precision", "fp32")
    if not isinstance(precision, str):
        raise SpecInvalid({"precision": "must be a word"})
    words: dict[str, Any] = {"precision": PRECISIONS.get(precision, precision)}
    workload = Workload(
        batch=sequences * pieces * world,
        accumulation=pieces,
        **words,
        optimizer_loop="forloop",
        accelerator="cpu",
    )
    taped = workload
    if sharding.stage == 3 and widths(workload).autocast:
        taped = workload.replace(precision="bf16")
    costs = residual_costs(net, taped, sequences)
    if taped is not workload:
        whole = residual_costs(net, workload, sequences)
        costs = [
            replace(
                cost,
                parameter_bytes=own.parameter_bytes,
                gradient_bytes=own.gradient_bytes,
                optimizer_bytes=own.optimizer_bytes,
                moment_width=own.moment_width,
            )
            for cost, own in zip(costs, whole, strict=True)
        ]
    return costs, workload, sharding


def _residual_net(sizes: Any) -> ResidualNet:
    """Return the net of these sizes. Raises SpecInvalid by field."""
    known = {field.name for field in fields(ResidualNet)}
    if not isinstance(sizes, Mapping) or not known.issuperset(sizes):
        detail = f"must be an object with any of {', '.join(sorted(known))}"
        raise SpecInvalid({"sizes": detail})
    _check_whole(sizes, "sizes.", sizes, least=1)
    if sizes.get("blocks", 1) > MAX_LAYERS:
        raise SpecInvalid({"sizes.blocks": f"must be at most {MAX_LAYERS:,}"})
    return ResidualNet(**sizes)


PRECISIONS = {"mixed": "autocast_bf16"}
"""FSDP2's MixedPrecisionPolicy(param_dtype=bfloat16) on fp32 weights."""


def _rank_answer(given: Mapping[str, Any]) -> dict[str, Any]:
    costs, workload, sharding = rank_case(given)
    made = rank_phases(costs, workload, sharding)
    return {
        "peak_bytes": int(made.peak_bytes),
        "param_bytes": made.parameter_bytes,
        "grad_bytes": made.gradient_bytes,
        "opt_state_bytes": made.optimizer_bytes,
        "activation_bytes": int(sum(cost.kept_bytes for cost in costs)),
        "phase_peak_bytes": {
            "fwd": int(made.phase_bytes["forward"]),
            "bwd": int(made.phase_bytes["backward"]),
            "opt": int(made.phase_bytes["optimizer"]),
        },
    }


def _plain_answer(case: MemoryCase) -> dict[str, Any]:
    """Return the answer for a plain net, which is one layer with one tape."""
    workload = case.workload
    if workload.checkpointing != "none":
        raise SpecInvalid({"checkpointing": "plain nets of the cases have none"})
    model = case.given["model"]
    net = plain_net(
        model["torch"], model.get("args", {}), case.given["input"], new_tape(workload)
    )
    width = widths(workload)
    fixed = case.input_bytes + net.buffer_elements * width.parameter + 8 * net.counters
    walked = replay(
        net.tape.ops, net.source, net.loss, accumulates=workload.accumulation > 1
    )
    cost = net_cost("other", net.shapes, walked, workload)
    made = rank_phases([cost], workload, ONE_RANK)
    names = {"forward": "fwd", "backward": "bwd", "optimizer": "opt"}
    phases = {names[phase]: size + fixed for phase, size in made.phase_bytes.items()}
    states = made.parameter_bytes + made.gradient_bytes + made.optimizer_bytes
    if workload.trains:
        phases["zero"] = states + fixed
    whole = {name: int(size) for name, size in phases.items()}
    return {
        "peak_bytes": max(whole.values()),
        "param_bytes": made.parameter_bytes,
        "grad_bytes": made.gradient_bytes,
        "opt_state_bytes": made.optimizer_bytes,
        "activation_bytes": cost.kept_bytes + 4,
        "phase_peak_bytes": whole,
    }
