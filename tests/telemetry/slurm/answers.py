"""Answers of Slurm's commands in the shapes of its versions, written from what Slurm
22.05 printed here and from the schemas of the later data parsers."""

import json
from typing import Any

BANNER = b"*** Welcome to the cluster ***\n{ maintenance on Friday }\n"


def _set(number: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": number}


NOT_SET = {"set": False, "infinite": False, "number": 0}
INFINITE = {"set": False, "infinite": True, "number": 0}


def old(key: str, *records: dict[str, Any]) -> bytes:
    """What 22.05 prints: no line feed at the end."""
    release = {"version": {"major": 22, "micro": 8, "minor": 5}, "release": "22.05.8"}
    plugin = {"type": "openapi/v0.0.38", "name": "Slurm OpenAPI v0.0.38"}
    meta = {"plugin": plugin, "Slurm": release}
    return json.dumps({"meta": meta, "errors": [], key: records}, indent=2).encode()


def new(key: str, *records: dict[str, Any]) -> bytes:
    """What 24.05 and later print."""
    version = {"major": "25", "micro": "3", "minor": "05"}
    meta = {"slurm": {"version": version, "release": "25.05.3", "cluster": "lab"}}
    found = {key: records, "meta": meta, "errors": [], "warnings": []}
    return (json.dumps(found, indent=2) + "\n").encode()


def old_node(name: str, gres: str, used: str, state: str = "idle", *flags: str) -> Any:
    """A node of ``sinfo --json``, 22.05."""
    return {
        "name": name,
        "state": state,
        "state_flags": list(flags),
        "gres": gres,
        "gres_used": used,
        "reason": "",
        "cpus": 2,
        "partitions": ["main"],
        "owner": None,
    }


def new_node(name: str, gres: str, used: str, *states: str) -> Any:
    """A node of ``scontrol show nodes --json``, 24.05."""
    return {
        "name": name,
        "state": list(states) or ["IDLE"],
        "gres": gres,
        "gres_used": used,
        "reason": "new fans",
        "cpus": 2,
        "boot_time": _set(1731514097),
    }


def old_job(number: int, user: str, nodes: list[str], gres: list[str], end: int) -> Any:
    """A job of ``squeue --json``, 22.05."""
    allocated = [{"sockets": {}, "nodename": name} for name in nodes]
    return {
        "job_id": number,
        "user_name": user,
        "user_id": 1000,
        "account": "vision",
        "job_state": "RUNNING",
        "end_time": end,
        "time_limit": 20,
        "nodes": ",".join(nodes),
        "gres_detail": gres,
        "resv_name": "",
        "job_resources": {"nodes": ",".join(nodes), "allocated_nodes": allocated},
    }


def new_job(number: int, user: str, nodes: str, gres: list[str], end: int) -> Any:
    """A job of ``squeue --json``, 24.05."""
    return {
        "job_id": number,
        "user_name": user,
        "user_id": 1000,
        "account": "vision",
        "job_state": ["RUNNING"],
        "end_time": _set(end),
        "time_limit": _set(20),
        "nodes": nodes,
        "gres_detail": gres,
        "resv_name": "",
        "job_resources": {
            "select_type": ["CPU"],
            "nodes": {"count": len(gres), "list": nodes, "allocation": []},
        },
    }


def new_reservation(name: str, start: int, end: int, nodes: str, **more: Any) -> Any:
    """A reservation of ``scontrol show reservations --json``, 24.05."""
    return {
        "name": name,
        "start_time": _set(start),
        "end_time": _set(end),
        "node_list": nodes,
        "users": "alice",
        "flags": ["SPEC_NODES"],
        "tres": "cpu=2",
        **more,
    }
