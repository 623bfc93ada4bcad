"""A list of Gpus that people write, for plans without a portal.

A JSON list of objects, one per Gpu (or an object with the list under `gpus`):

    [{"name": "NVIDIA A100 80GB", "free_bytes": 80000000000},
     {"name": "NVIDIA A100 80GB", "free_bytes": 42000000000, "util_pct": 60,
      "compute_processes": 1, "link_group": "a"}]

Only `free_bytes` is required. `uuid` and `node` become words of commands, so they have
only ASCII letters, digits and . _ : / -. All other texts are printable. Defaults:
`memory_total_bytes` is the same as the free bytes; `node` is "local", `index` counts up
within the node, `uuid` is made of both; `peak_flops` follows from the name. Other
fields: used_bytes, gpu_class, util_pct,
compute_processes, link_group (Gpus of one group have NVLink), links ([[uuid,
distance]]), weight, network_bytes_per_second, speed_ratio, measured_share_ratio,
bookable, reason, health, host_free_bytes and disk_free_bytes (of the node, for
offloading; default: unknown).
"""

import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from placement.planner.values.errors import OffersInvalid
from placement.planner.values.gpu_availability import (
    GpuOffer,
    check_offers,
    peak_flops_of,
)

MOST_GPUS = 1024
MOST_BYTES = 2**50
MOST_NUMBER = 1e30
"""More than any speed in FLOP or bytes per second."""
_NAMES = tuple(field.name for field in fields(GpuOffer))
_WHOLE = ("index", "compute_processes", "weight")
_BYTES = (
    "free_bytes",
    "memory_total_bytes",
    "used_bytes",
    "host_free_bytes",
    "disk_free_bytes",
)
_RATIOS = ("speed_ratio", "measured_share_ratio")
_NUMBERS = ("util_pct", "peak_flops", "network_bytes_per_second", *_RATIOS)
_TEXTS = ("uuid", "node", "name", "gpu_class", "link_group", "reason")
_NAMES_IN_COMMANDS = ("uuid", "node")
_SAFE_NAME = re.compile(r"[A-Za-z0-9._:/-]+")
"""Nodes of the portal, host names, UUIDs of GPUs and of MIG instances."""
_NONE_IS_UNKNOWN = (
    "util_pct",
    "measured_share_ratio",
    "host_free_bytes",
    "disk_free_bytes",
)


def offers_from_list(data: Any) -> list[GpuOffer]:
    """Read the list. Raises OffersInvalid with the invalid entry and field."""
    rows = data.get("gpus") if isinstance(data, Mapping) else data
    if not isinstance(rows, list) or not rows:
        raise OffersInvalid({"gpus": "must be a JSON list of GPUs, at least one"})
    if len(rows) > MOST_GPUS:
        raise OffersInvalid({"gpus": f"{len(rows):,} GPUs; at most {MOST_GPUS:,}"})
    counts: dict[str, int] = {}
    offers = [_offer(number, row, counts) for number, row in enumerate(rows)]
    check_offers(offers)
    return offers


def _offer(number: int, row: Any, counts: dict[str, int]) -> GpuOffer:
    where = f"gpus[{number}]"
    if not isinstance(row, Mapping):
        raise OffersInvalid({where: "must be an object"})
    for name, value in row.items():
        problem = _problem(str(name), value)
        if problem:
            raise OffersInvalid({f"{where}.{str(name)[:40]}": problem})
    if "free_bytes" not in row:
        raise OffersInvalid({f"{where}.free_bytes": "must be there"})
    plain = dict(row)
    node = plain.setdefault("node", "local")
    index = plain.setdefault("index", counts.get(node, 0))
    counts[node] = index + 1
    plain.setdefault("uuid", f"{node}:{index}")
    plain.setdefault("name", "GPU")
    plain.setdefault("gpu_class", plain["name"])
    used = plain.setdefault("used_bytes", 0)
    plain.setdefault("memory_total_bytes", plain["free_bytes"] + used)
    if not plain.get("peak_flops"):
        plain["peak_flops"] = peak_flops_of(plain["name"])
    if "used_bytes" not in row:
        plain["used_bytes"] = max(0, plain["memory_total_bytes"] - plain["free_bytes"])
    plain["links"] = tuple((a, b) for a, b in plain.get("links", ()))
    plain["health"] = tuple(plain.get("health", ()))
    return GpuOffer(**plain)


def _problem(name: str, value: Any) -> str:
    """Return the problem of one field, or ""."""
    if name not in _NAMES:
        return "is not a field of a GPU"
    if value is None:
        return "" if name in _NONE_IS_UNKNOWN else "must not be null"
    if name in _TEXTS:
        return _text_problem(name, value)
    if name in _WHOLE or name in _BYTES:
        most = MOST_BYTES if name in _BYTES else 10**6
        wrong = type(value) is not int or not 0 <= value <= most
        return f"must be a whole number from 0 to {most:,}" if wrong else ""
    if name in _NUMBERS:
        real = isinstance(value, int | float) and not isinstance(value, bool)
        if not real or not 0 <= value <= MOST_NUMBER:  # NaN too
            return "must be a number from 0 up"
        return "must be at most 1" if name in _RATIOS and value > 1 else ""
    if name == "bookable":
        return "" if isinstance(value, bool) else "must be true or false"
    return _list_problem(name, value)


def _text_problem(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > 120:
        return "must be a text of at most 120 characters"
    if name in _NAMES_IN_COMMANDS and not _SAFE_NAME.fullmatch(value):
        return "must have only ASCII letters, digits and . _ : / -, at least one"
    return "" if value.isprintable() else "must be printable, on one line"


def _list_problem(name: str, value: Any) -> str:
    if not isinstance(value, list) or len(value) > MOST_GPUS:
        return "must be a list"
    if name == "health":
        good = all(isinstance(word, str) and word.isprintable() for word in value)
        return "" if good else "must be a list of printable texts"
    for pair in value:
        if not isinstance(pair, list) or len(pair) != 2:
            return "must be a list of pairs: another GPU's uuid, the distance"
        if not all(isinstance(word, str) and word.isprintable() for word in pair):
            return "must be a list of pairs of printable texts"
    return ""
