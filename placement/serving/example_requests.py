"""Example requests for a served model, and the curl command that sends one."""

import json
import shlex
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any
from urllib.parse import quote

MOST_INLINE_CHARACTERS = 1000
"""A longer body is a file, because it is too long to copy from a page."""
MOST_ELEMENTS = 2**20
"""A larger tensor is sent in the binary form, so there is no JSON example."""
REQUEST_FILE = "request.json"
_FIRST: Mapping[str, object] = {"BOOL": False, "BYTES": ""}


def example_request(inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return a request with one row of zeros; None: too large to write as JSON.

    Args:
        inputs: name, datatype and shape of each; a free dimension is negative.

    >>> example_request([{"name": "x", "datatype": "FP32", "shape": [-1, 2]}])
    {'inputs': [{'name': 'x', 'shape': [1, 2], 'datatype': 'FP32', 'data': [0, 0]}]}
    """
    made = []
    for one in inputs:
        shape = [1 if size < 0 else size for size in one["shape"]]
        if prod(shape) > MOST_ELEMENTS:
            return None
        value = _FIRST.get(one["datatype"], 0)
        made.append(
            {
                "name": one["name"],
                "shape": shape,
                "datatype": one["datatype"],
                "data": [value] * prod(shape),
            }
        )
    return {"inputs": made}


def curl_command(endpoint: str, name: str, body: Mapping[str, Any] | None) -> str:
    """Return a command for a POSIX shell that calls a model once.

    It reads the token from the variable TOKEN. A short body is part of the command. A
    long one is read from request.json in the current folder.

    Args:
        endpoint: address of the endpoint, including /v2.
        name: of the model.
        body: of the request. None: the reader provides request.json.
    """
    data = f"@{REQUEST_FILE}"
    if body is not None and is_inline(body):
        data = shlex.quote(json.dumps(body))
    url = f"{endpoint}/models/{quote(name, safe='')}/infer"
    return (
        'curl -H "Authorization: Bearer $TOKEN" \\\n'
        '  -H "Content-Type: application/json" \\\n'
        f"  -d {data} \\\n"
        f"  {shlex.quote(url)}"
    )


def is_inline(body: Mapping[str, Any]) -> bool:
    """Return whether a command contains this body."""
    return len(json.dumps(body)) <= MOST_INLINE_CHARACTERS
