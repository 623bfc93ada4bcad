"""The description of a training step to follow: the model, the batch, the training.

Reads the `spec` objects of the public memory cases, and the Workload of a config.json.
Pure: every field is checked here, before a process is started for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from placement.planner.model.config_reader import check_size
from placement.planner.values.entry_point import EntryPoint
from placement.planner.values.errors import SpecInvalid
from placement.planner.values.json_value import JsonValue
from placement.planner.values.strategies import DDP
from placement.planner.values.workload import Workload

TEXT_KINDS = ("lm", "mlm", "seqcls", "lm_plain")
INPUT_FIELDS: dict[str, tuple[str, ...]] = {
    "lm": ("batch", "seq", "vocab"),
    "mlm": ("batch", "seq", "vocab"),
    "lm_plain": ("batch", "seq", "vocab"),
    "seqcls": ("batch", "seq", "vocab"),
    "seq2seq": ("batch", "seq", "tgt", "vocab"),
    "speech": ("batch", "tgt", "vocab"),
    "cls_img": ("batch", "size", "classes"),
    "seg_img": ("batch", "size", "classes"),
    "cls_vec": ("batch", "dim", "classes"),
}
"""Required fields of each kind of batch."""
OPTIONAL_INPUT = ("mels", "frames", "channels")
PRECISIONS = ("fp32", "bf16", "fp16", "autocast_bf16", "autocast_fp16")
OPTIMIZERS = (
    *("sgd", "momentum", "adam", "adamw", "adam8bit", "adafactor", "adafactor_hf"),
    *("rmsprop", "adagrad", "lion", "muon", "adamw8bit", "lion8bit", "rmsprop8bit"),
    "none",
)
"""none: inference."""
LOOPS = ("foreach", "forloop", "fused")
KERNELS = ("auto", "flash", "efficient", "math")
READ = frozenset(
    {
        *("id", "model", "input", "precision", "optimizer", "checkpointing"),
        *("grad_accum", "lora", "freeze", "set_to_none", "accelerator", "attention"),
        *("train", "ranks", "strategy", "traced"),
    }
)
MAX_BATCH = 2**20
MAX_LENGTH = 2**22
MAX_ACCUMULATION = 4096
MAX_RANK = 2**14
MAX_NAMES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Adapter:
    """Low-rank adapters on every linear module with one of these names."""

    rank: int
    targets: tuple[str, ...]
    dropout_ratio: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(JsonValue):
    """A checked case. `read` makes it. `to_json` sends it to the child process."""

    model: Mapping[str, Any]
    """One of: {hf_class, config_class, config, attn}; {torch, args}; {config, attn}, a
    whole config.json; {entry}, a user's module:callable.
    """
    input: Mapping[str, Any]
    precision: str = "fp32"
    optimizer: str = "adamw"
    momentum_ratio: float = 0.0
    loop: str = ""
    """How the optimizer steps; empty: torch's default on the accelerator."""
    checkpointing: bool = False
    accumulation: int = 1
    attention: str = "auto"
    """The kernel behind SDPA. auto: the accelerator's choice."""
    accelerator: str = "cpu"
    adapter: Adapter | None = None
    frozen: tuple[str, ...] = ()
    """Parameters whose name contains one of these are not trained."""
    set_to_none: bool = True
    trains: bool = True
    ranks: int = 1
    """Replicas of DistributedDataParallel. Its buckets are counted on one rank."""
    traced: bool = False
    """As under FakeTensorMode or torch.export, where transformers passes masks
    explicitly and autograd adds gradients up in new tensors.
    """
    ignored: tuple[str, ...] = ()
    """Fields of the spec without a meaning here."""


def read_case(spec: Mapping[str, Any]) -> Case:
    """Return a checked spec object.

    Raises:
        SpecInvalid: every invalid field.
    """
    if not isinstance(spec, Mapping):
        raise SpecInvalid({"spec": "must be an object"})
    check_size(spec)
    problems: dict[str, str] = {}
    silent = spec.get("train") is False and "optimizer" not in spec
    optimizer = {} if silent else _object(problems, spec, "optimizer")
    named = "none" if silent else optimizer.get("name")
    name = _word(problems, "optimizer.name", named, OPTIMIZERS)
    momentum = optimizer.get("momentum") or 0.0
    loop = optimizer.get("impl") or optimizer.get("loop") or ""
    if optimizer.get("foreach") is not None:
        loop = "foreach" if optimizer["foreach"] else "forloop"
    if optimizer.get("fused"):
        loop = "fused"
    case = Case(
        model=_model(problems, spec.get("model")),
        input=_input(problems, spec.get("input")),
        precision=_word(problems, "precision", spec.get("precision"), PRECISIONS),
        optimizer=name,
        momentum_ratio=_ratio(problems, "optimizer.momentum", momentum),
        loop=_word(problems, "optimizer.loop", loop, ("", *LOOPS)),
        checkpointing=_flag(problems, spec, "checkpointing", False),
        accumulation=_whole(
            problems, "grad_accum", spec.get("grad_accum") or 1, MAX_ACCUMULATION
        ),
        attention=_word(
            problems, "attention", spec.get("attention") or "auto", KERNELS
        ),
        accelerator=_word(
            problems, "accelerator", spec.get("accelerator") or "cpu", ("cpu", "cuda")
        ),
        adapter=_adapter(problems, spec.get("lora")),
        frozen=_names(problems, "freeze", spec.get("freeze") or ()),
        set_to_none=_flag(problems, spec, "set_to_none", True),
        trains=name != "none" and _flag(problems, spec, "train", True),
        traced=_flag(problems, spec, "traced", is_simulated(spec.get("id"))),
        ranks=_whole(problems, "ranks", spec.get("ranks") or 1, MAX_RANK),
        ignored=tuple(sorted(str(key)[:40] for key in spec if key not in READ)),
    )
    if spec.get("strategy", DDP.key) != DDP.key:
        problems["strategy"] = "only ddp; other strategies have the closed form"
    if problems:
        raise SpecInvalid(problems)
    return case


def is_simulated(name: object) -> bool:
    """Return whether a case's id means that its step was simulated ("sim-..."), so
    traced.

    The memory cases mark the rows of FakeTensorMode in this way. Their numbers hold for
    steps under that tracer, where transformers makes masks that a run does not have.
    """
    return isinstance(name, str) and name.startswith("sim-")


def of_workload(
    model: Mapping[str, Any],
    given: Mapping[str, Any],
    workload: Workload,
    *,
    replicas: int = 1,
) -> Case:
    """Return the case of a model under a Workload, on one of the Gpus of its batch.

    `given`: the kind of batch, and the fields of it that the Workload lacks.

    Raises:
        SpecInvalid: the Workload has a part without a symbolic form.
    """
    problems = {
        field: why
        for field, wrong, why in (
            (
                "precision",
                workload.precision not in PRECISIONS,
                f"{workload.precision} is estimated in closed form only",
            ),
            ("offload", workload.offload != "none", "is estimated in closed form only"),
            ("loss", workload.loss != "plain", "fused loss has the closed form only"),
            (
                "checkpointing",
                workload.checkpointing == "selective",
                "selective is estimated in closed form only",
            ),
        )
        if wrong
    }
    if problems:
        raise SpecInvalid(problems)
    attention = "auto" if workload.attention == "eager" else workload.attention
    length = workload.sequence_length
    made = {
        "seq": length,
        "tgt": workload.target_length or length,
        **given,
        "batch": workload.microbatch(replicas),
    }
    return Case(
        model={**model, "attn": "eager" if workload.attention == "eager" else "sdpa"},
        input=made,
        precision=workload.precision,
        optimizer="sgd" if workload.optimizer == "momentum" else workload.optimizer,
        momentum_ratio=0.9 if workload.optimizer == "momentum" else 0.0,
        loop=workload.optimizer_loop,
        checkpointing=workload.checkpointing == "full",
        accumulation=workload.accumulation,
        attention=attention,
        accelerator=workload.accelerator,
        trains=workload.trains,
        ranks=replicas,
    )


def partial_input(given: Any) -> dict[str, Any]:
    """Parse the fields of a batch that a Workload lacks. All of them are optional.

    Raises:
        SpecInvalid: by field.
    """
    if not isinstance(given, Mapping):
        raise SpecInvalid({"input": "must be an object"})
    known = {
        *OPTIONAL_INPUT,
        *(one for names in INPUT_FIELDS.values() for one in names),
    }
    problems: dict[str, str] = {}
    for name, value in given.items():
        if name == "kind":
            _word(problems, "input.kind", value, tuple(INPUT_FIELDS))
        elif name not in known or name == "batch":
            problems[f"input.{str(name)[:40]}"] = "is not a field that can be set here"
        else:
            _whole(problems, f"input.{name}", value, MAX_LENGTH)
    if problems:
        raise SpecInvalid(problems)
    return dict(given)


# --- fields ------------------------------------------------------------------------


def _model(problems: dict[str, str], model: Any) -> Mapping[str, Any]:
    if not isinstance(model, Mapping):
        problems["model"] = "must be an object"
        return {}
    attention = model.get("attn") or "sdpa"
    if attention not in ("sdpa", "eager"):
        problems["model.attn"] = "must be sdpa or eager"
    if "entry" in model:
        EntryPoint.read(str(model["entry"]))
        return {"entry": str(model["entry"])}
    if "torch" in model:
        args = model.get("args") or {}
        if not isinstance(model["torch"], str) or not isinstance(args, Mapping):
            problems["model.torch"] = "must be a class name, and args an object"
            return {}
        return {"torch": model["torch"], "args": dict(args)}
    config = model.get("config")
    if not isinstance(config, Mapping):
        problems["model.config"] = "must be an object"
        config = {}
    if "hf_class" not in model:
        return {"config": dict(config), "attn": attention}
    for name in ("hf_class", "config_class"):
        value = model.get(name)
        if not isinstance(value, str) or not value.isidentifier() or value[0] == "_":
            problems[f"model.{name}"] = "must be the name of a class"
    kept = {name: model.get(name) for name in ("hf_class", "config_class")}
    return {**kept, "config": dict(config), "attn": attention}


def _input(problems: dict[str, str], given: Any) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        problems["input"] = "must be an object"
        return {}
    kind = given.get("kind")
    if not isinstance(kind, str) or kind not in INPUT_FIELDS:
        problems["input.kind"] = f"must be one of {', '.join(INPUT_FIELDS)}"
        return {}
    made: dict[str, Any] = {"kind": kind}
    for name in INPUT_FIELDS[kind]:
        most = MAX_BATCH if name == "batch" else MAX_LENGTH
        made[name] = _whole(problems, f"input.{name}", given.get(name), most)
    for name in OPTIONAL_INPUT:
        if given.get(name) is not None:
            made[name] = _whole(problems, f"input.{name}", given[name], MAX_LENGTH)
    return made


def _adapter(problems: dict[str, str], lora: Any) -> Adapter | None:
    if lora is None:
        return None
    if not isinstance(lora, Mapping):
        problems["lora"] = "must be an object with rank and targets"
        return None
    targets = lora.get("targets") or lora.get("target_modules") or ("q_proj", "v_proj")
    dropout = lora.get("dropout") or lora.get("lora_dropout") or 0.0
    return Adapter(
        rank=_whole(problems, "lora.rank", lora.get("rank", lora.get("r")), MAX_RANK),
        targets=_names(problems, "lora.targets", targets),
        dropout_ratio=_ratio(problems, "lora.dropout", dropout),
    )


def _object(problems: dict[str, str], spec: Mapping[str, Any], name: str) -> Any:
    value = spec.get(name)
    if isinstance(value, Mapping):
        return value
    problems[name] = "must be an object"
    return {}


def _whole(problems: dict[str, str], field: str, value: Any, most: int) -> int:
    if type(value) is not int or not 1 <= value <= most:
        problems[field] = f"must be a whole number from 1 to {most:,}"
        return 1
    return value


def _ratio(problems: dict[str, str], field: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1:
        problems[field] = "must be a number from 0 to below 1"
        return 0.0
    return float(value)


def _word(
    problems: dict[str, str], field: str, value: Any, known: Sequence[str]
) -> str:
    if value not in known:
        problems[field] = f"must be one of {', '.join(filter(None, known))}"
        return known[0]
    return str(value)


def _flag(
    problems: dict[str, str], spec: Mapping[str, Any], name: str, default: bool
) -> bool:
    value = spec.get(name, default)
    if value in ("none", "full") and name == "checkpointing":
        return value == "full"
    if type(value) is not bool:
        problems[name] = "must be true or false"
        return default
    return value


def _names(problems: dict[str, str], field: str, value: Any) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if (
        not isinstance(given, list | tuple)
        or len(given) > MAX_NAMES
        or not all(isinstance(one, str) and 0 < len(one) <= 200 for one in given)
    ):
        problems[field] = f"must be a list of at most {MAX_NAMES} names"
        return ()
    return tuple(given)
