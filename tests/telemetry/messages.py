"""Messages as nodes send them, and readings as ingest sees them."""

import json
import time

import redis

GIB = 2**30


def gpu_info(uuid: str, index: int = 0, **fields: object) -> dict:
    """One Gpu of a roster."""
    return {
        "uuid": uuid,
        "index": index,
        "name": "NVIDIA A100-SXM4-80GB",
        "gpu_class": "A100-SXM4-80GB",
        "memory_total_bytes": 80 * GIB,
        "power_limit_watts": 400.0,
        "slowdown_celsius": 90.0,
        "sm_clock_max_mhz": 1410,
        "pci_bus_id": f"00000000:{index:02X}:00.0",
        "serial": "",
        "compute_capability": "8.0",
        "mig": False,
        **fields,
    }


def roster(*gpus: dict, **fields: object) -> dict:
    """A node's roster."""
    return {
        "v": 1,
        "kind": "roster",
        "at": time.time(),
        "backend": "simulated",
        "driver_version": "570.00",
        "cuda_version": "12.8",
        "boot_id": "boot-1",
        "isolation": "none",
        "gpus": list(gpus),
        "fast_links": [],
        **fields,
    }


def reading(uuid: str, **fields: object) -> dict:
    """One Gpu of a sample: answering, busy at half."""
    return {
        "uuid": uuid,
        "state": "ok",
        "util_pct": 50,
        "memory_used_bytes": 10 * GIB,
        "memory_reserved_bytes": GIB // 2,
        "temperature_celsius": 60,
        "power_watts": 250.0,
        "sm_clock_mhz": 1200,
        "throttle": [],
        "processes": [],
        **fields,
    }


def process(pid: int = 4242, **fields: object) -> dict:
    """One process of a reading."""
    return {
        "pid": pid,
        "uid": 1001,
        "user": "alice",
        "command": "/usr/bin/python3 /home/alice/secret/train.py --lr 0.1",
        "memory_bytes": 8 * GIB,
        "sm_pct": 40,
        "started_at": time.time() - 60,
        "job": None,
        **fields,
    }


def sample(*readings: dict, seq: int = 1, **fields: object) -> dict:
    """A node's sample."""
    return {
        "v": 1,
        "kind": "sample",
        "at": time.time(),
        "seq": seq,
        "load1": 0.4,
        "gpus": list(readings),
        **fields,
    }


def send(
    client: redis.Redis, stream: str, message: dict | bytes, at: float | None = None
) -> bytes:
    """Append a message to a stream, at a chosen instant or now."""
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    entry_id = "*" if at is None else f"{int(at * 1000)}-*"
    return client.xadd(stream, {"m": data}, id=entry_id)
