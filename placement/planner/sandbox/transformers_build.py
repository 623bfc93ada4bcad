"""Build any family that the pinned transformers knows, on meta, from a config.json.

Nothing is downloaded and nothing of the config is executed: `auto_map` (code of the
model's author) is ignored, the class is one of transformers' own, and the hub is off.
"""

import os
from collections.abc import Mapping
from typing import Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    TRANSFORMERS_VERBOSITY="error",
    OMP_NUM_THREADS="1",
    OPENBLAS_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
)

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.utils import is_ninja_available

from placement.planner.model.config_reader import check_numbers, check_size
from placement.planner.values.errors import SpecInvalid, UnknownFamily

version: str = transformers.__version__
# RWKV asks whether ninja is there, by starting it. transformers keeps the answer, and
# later no process may be started.
is_ninja_available()
TWO_STACKS = ("AutoModelForSeq2SeqLM", "AutoModelForSpeechSeq2Seq")
AUTO_CLASSES = (
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForImageTextToText",
    "AutoModelForImageClassification",
    "AutoModelForSequenceClassification",
    *TWO_STACKS,
    "AutoModel",
)
"""Tried in this order if config.json does not name its class."""
IGNORED = (
    "auto_map",
    "quantization_config",
    "attn_implementation",
    "transformers_version",
)


def built(config: Mapping[str, Any]) -> torch.nn.Module:
    """Return the module of a config.json on the meta device. Raises SpecInvalid."""
    architecture, parsed = class_and_config(config)
    try:
        with torch.device("meta"):
            return architecture._from_config(parsed)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        raise _refused(error) from error


def class_and_config(config: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return transformers' class for a config.json, and its config. Raises
    SpecInvalid.
    """
    check_size(config)
    check_numbers(config)
    family = config.get("model_type")
    if not isinstance(family, str):
        raise SpecInvalid({"model_type": "is missing"})
    if family not in CONFIG_MAPPING:
        raise UnknownFamily(family, [f"any of transformers {transformers.__version__}"])
    try:
        parsed = CONFIG_MAPPING[family].from_dict(_plain(config))
        return _architecture(config, parsed), parsed
    except (MemoryError, RecursionError, SpecInvalid):
        raise
    except Exception as error:
        raise _refused(error) from error


def _plain(value: Any) -> Any:
    """Return a config without the fields that make transformers look for code or files.

    At any depth these are fields of `IGNORED`, and private ones such as
    `_attn_implementation`, which may name a kernel of the hub.
    """
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, Mapping):
        return value
    return {
        key: _plain(inner)
        for key, inner in value.items()
        if key not in IGNORED and not str(key).startswith("_")
    }


def _refused(error: Exception) -> SpecInvalid:
    text = " ".join(str(error).split())[:300]
    return SpecInvalid(
        {"config": f"transformers {transformers.__version__} refuses it: {text}"}
    )


def _architecture(config: Mapping[str, Any], parsed: Any) -> Any:
    """Return transformers' own class that `architectures[0]` names, else its usual one.

    Raises SpecInvalid if transformers has no such class.
    """
    given = config.get("architectures")
    name = given[0] if isinstance(given, list) and given else None
    if isinstance(name, str) and name.isidentifier():
        known = getattr(transformers, name, None)
        if isinstance(known, type) and issubclass(known, transformers.PreTrainedModel):
            return known
    first = TWO_STACKS if getattr(parsed, "is_encoder_decoder", False) else ()
    for auto in (*first, *AUTO_CLASSES):
        mapping = getattr(transformers, auto)._model_mapping
        if type(parsed) in mapping:
            chosen = mapping[type(parsed)]
            return chosen[0] if isinstance(chosen, tuple) else chosen
    raise SpecInvalid(
        {"model_type": f"'{config['model_type'][:80]}' has no model class"}
    )
