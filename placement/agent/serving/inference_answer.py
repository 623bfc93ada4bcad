"""Answers of the Open Inference Protocol v2, as JSON and in its binary form."""

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from placement.agent.serving.tensors import DATATYPES, InferenceRequest, TensorInvalid


def write_answer(
    model: str,
    asked: InferenceRequest,
    results: Mapping[str, np.ndarray],
    parameters: Mapping[str, Any],
) -> tuple[bytes, int | None]:
    """Return the body of an answer, and how many bytes of it are JSON (None: all).

    Numbers that JSON does not have (NaN, infinities) become null. The binary form has
    them unchanged.
    """
    outputs, blobs = [], []
    for name in asked.outputs:
        value = np.asarray(results[name])
        told: dict[str, Any] = {
            "name": name,
            "datatype": datatype_of(value),
            "shape": list(value.shape),
        }
        if name in asked.binary:
            raw = _raw(value)
            told["parameters"] = {"binary_data_size": len(raw)}
            blobs.append(raw)
        else:
            told["data"] = _json_list(value)
        outputs.append(told)
    head: dict[str, Any] = {
        "model_name": model,
        "model_version": "1",
        "outputs": outputs,
        "parameters": dict(parameters),
    }
    if asked.id:
        head["id"] = asked.id
    text = json.dumps(head, separators=(",", ":"), allow_nan=False).encode()
    return text + b"".join(blobs), len(text) if blobs else None


def datatype_of(value: np.ndarray) -> str:
    """Return the protocol's name of an array's type."""
    if value.dtype.kind in "OUS":
        return "BYTES"
    for word, kind in DATATYPES.items():
        if value.dtype == np.dtype(kind):
            return word
    raise TensorInvalid("outputs", f"the type {value.dtype} cannot be sent")


def _raw(value: np.ndarray) -> bytes:
    if value.dtype.kind in "OUS":
        texts = [str(one).encode() for one in value.ravel()]
        return b"".join(struct.pack("<I", len(text)) + text for text in texts)
    return value.astype(value.dtype.newbyteorder("<")).tobytes()


def _json_list(value: np.ndarray) -> list[Any]:
    flat = value.ravel()
    if value.dtype.kind in "OUS":
        return [str(one) for one in flat]
    if value.dtype.kind == "f" and not np.isfinite(flat).all():
        return [float(one) if np.isfinite(one) else None for one in flat]
    return list(flat.tolist())
