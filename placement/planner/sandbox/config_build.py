"""Build a config.json on meta, in a separate process.

    python -m placement.planner.sandbox.config_build PATH [NAME]

For families that placement.planner.model.families.config_json does not know. Its output
is that of placement.planner.sandbox.model_file_reader: one line of JSON, exit 0 with a
ModelSpec, exit 2 with a problem. Only classes of the pinned transformers are built, on
meta, so nothing is allocated. It uses no hub and no code of the model's author. The
limits are set before the file is read.
"""

import atexit
import gc
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from placement.planner.model.config_reader import check_numbers, check_size
from placement.planner.model.quantization_config import read_quantization
from placement.planner.model.quantized_weights import quantized
from placement.planner.model.spec import ModelSpec
from placement.planner.sandbox.jail import (
    EXIT_REFUSED,
    end_at_sockets,
    limit,
    own_output,
    problem,
    say,
)
from placement.planner.sandbox.model_file_reader import (
    CONFIG_MAX_BYTES,
    OpenedFile,
    opened,
    read_json,
    with_config,
)
from placement.planner.values.errors import (
    BadInput,
    FileRefused,
    SpecInvalid,
    UnknownFamily,
)

CPU_SECONDS = 30
ADDRESS_BYTES = 2 * 2**30
"""Address space for torch and transformers, and for modules of a large model."""
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_TAKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "top_k")
"""Names of the experts in different families, and of the number that a token uses."""


def main(arguments: list[str]) -> int:
    """Build one config and print the answer. Return 0 or EXIT_REFUSED."""
    answers = own_output()
    # Imported objects stay alive, so a collection during the imports finds little. At
    # its end the interpreter would visit every object again.
    gc.disable()
    atexit.register(gc.freeze)
    try:
        if len(arguments) not in (1, 2):
            raise FileRefused("usage", "path", "PATH [NAME]")
        one = opened(Path(arguments[0]))
        name = arguments[1] if len(arguments) == 2 else ""
        spec, config = read(one, name[:120])
        return say(answers, with_config(spec, config), 0)
    except BadInput as error:
        told = problem(error.code, error.field, error.detail)
    except MemoryError:
        told = problem("too-large", "config", "building it needs too much memory")
    except RecursionError:
        told = problem("too-deep", "config", "is nested too deep")
    return say(answers, told, EXIT_REFUSED)


def read(one: OpenedFile, name: str) -> tuple[ModelSpec, Any]:
    """Return (the ModelSpec of an open config.json, the config.json).

    Raises BadInput.
    """
    limit(address_bytes=ADDRESS_BYTES, cpu_seconds=CPU_SECONDS, files=None)
    if one.size > CONFIG_MAX_BYTES:
        detail = f"{one.size:,} bytes; at most {CONFIG_MAX_BYTES:,}"
        raise FileRefused("too-large", "file", detail)
    config = read_json(one.file.read())
    check_size(config)
    check_numbers(config)
    family = config.get("model_type")
    try:
        _refuse_unknown(family)
        # The order matters: this makes the libraries start no threads.
        from placement.planner.sandbox.transformers_build import built, version

        from placement.planner.sandbox.meta_model import spec_of_module  # isort: skip
    except ImportError as error:
        detail = (
            "its family is not known here, and the libraries that could build it "
            "are not installed; a .safetensors file of the model works for any family"
        )
        raise FileRefused("unknown-family", "model_type", detail) from error
    gc.freeze()
    gc.enable()
    # Only now, because it is called at every import, and torch has thousands.
    end_at_sockets()
    module = built(config)
    family = str(family)[:80]
    note = (
        f"built on meta by transformers {version} as "
        f"{type(module).__name__}: parameters are exact, activations a guess"
    )
    spec = spec_of_module(
        module,
        name=name or family,
        source="config.json",
        family=family,
        notes=[note],
    )
    spec = replace(spec, routed_ratio=routed_ratio(config))
    scheme = read_quantization(config)
    return (spec if scheme is None else quantized(spec, scheme)), config


def routed_ratio(config: Mapping[str, Any]) -> float:
    """Return the part of the experts that a token uses, from a config.json; 1 without
    experts.

    The text model of a larger model has its own config inside.
    """
    for one in (config, config.get("text_config"), config.get("thinker_config")):
        if not isinstance(one, Mapping):
            continue
        every, taken = (_first_count(one, names) for names in (_EXPERTS, _TAKEN))
        if every and taken and taken < every:
            return taken / every
    return 1.0


def _first_count(config: Mapping[str, Any], names: tuple[str, ...]) -> int:
    found = [config[name] for name in names if type(config.get(name)) is int]
    return found[0] if found and found[0] > 0 else 0


def _refuse_unknown(family: Any) -> None:
    """Refuse a family that transformers does not have either, before torch is
    imported.
    """
    import transformers
    from transformers.models.auto import auto_mappings as known

    if not isinstance(family, str):
        raise SpecInvalid({"model_type": "is missing"})
    if (
        family not in known.CONFIG_MAPPING_NAMES
        and family not in known.SPECIAL_MODEL_TYPE_TO_MODULE_NAME
    ):
        raise UnknownFamily(family, [f"any of transformers {transformers.__version__}"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
