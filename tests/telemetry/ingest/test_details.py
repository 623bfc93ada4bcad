"""What goes beside the frame: the rarer readings and how a node's driver is doing."""

import json
import time
from typing import Any

import pytest
import redis

from telemetry.live import broadcast
from telemetry.models import Node
from tests.factories import make_gpu, make_node
from tests.telemetry.ingest.stepped import Stepped
from tests.telemetry.messages import reading, sample, send

RARE = {
    "fan_pct": 40,
    "encoder_pct": 3,
    "memory_clock_mhz": 1593,
    "pstate": 0,
    "energy_joules": 12.5,
    "ecc_uncorrected": 0,
    "remap_pending": False,
    "row_remap_corrected": 1,
    "pcie_gen": 4,
    "pcie_rx_bytes_per_second": 5 * 10**9,
    "xids": [{"code": 79, "at": 5.0}],
    "mig_instances": [
        {
            "uuid": "MIG-1",
            "name": "1g.10gb",
            "memory_total_bytes": 10,
            "memory_used_bytes": None,
        }
    ],
}


@pytest.fixture
def node_a(db) -> Node:
    return make_node("node-a", last_seen_at=None)


@pytest.fixture
def ingest(node_a, redis_client) -> Stepped:
    return Stepped(redis_client)


def detail(client: redis.Redis, node: str = "node-a") -> dict[str, Any]:
    """The node's details as pages read them."""
    told: dict[str, Any] = json.loads(client.get(broadcast.DETAIL + node))
    return told


def trouble(state: str, reason: str = "", **fields: object) -> dict[str, Any]:
    """What a node says of its driver."""
    told = {"v": 1, "kind": "trouble", "at": time.time(), "state": state}
    return {**told, "reason": reason, **fields}


def test_every_reading_there_is_reaches_the_details(
    node_a, ingest, redis_client
) -> None:
    full, bare = make_gpu(node_a), make_gpu(node_a)
    send(
        redis_client,
        "raw.node-a",
        sample(reading(full.uuid, **RARE), reading(bare.uuid, processes=None)),
    )
    ingest.round()
    gpus = detail(redis_client)["gpus"]
    assert {key: gpus[full.uuid][key] for key in RARE} == RARE
    assert gpus[bare.uuid]["processes"] is None
    assert RARE.keys() & gpus[bare.uuid].keys() == set()
    assert "util_pct" not in gpus[full.uuid], "the frame has it"


def test_a_nodes_trouble_is_kept_and_told(node_a, ingest, redis_client) -> None:
    gpu = make_gpu(node_a)
    send(redis_client, "raw.node-a", sample(reading(gpu.uuid)))
    ingest.round()
    assert "trouble" not in detail(redis_client)
    send(redis_client, "raw.node-a", trouble("wedged", "child 7 survives SIGKILL"))
    ingest.round()
    told = detail(redis_client)["trouble"]
    assert (told["state"], told["reason"]) == ("wedged", "child 7 survives SIGKILL")
    kept = redis_client.get("telemetry.trouble.node-a")
    assert json.loads(kept) == told
    assert redis_client.ttl("telemetry.trouble.node-a") == -1
    send(redis_client, "raw.node-a", trouble("ok"))
    ingest.round()
    assert detail(redis_client)["trouble"]["state"] == "ok"


def test_a_node_without_a_driver_has_details_without_gpus(ingest, redis_client) -> None:
    send(redis_client, "raw.node-a", trouble("no_driver", "no NVIDIA driver here"))
    ingest.round()
    told = detail(redis_client)
    assert told["gpus"] == {}
    assert told["trouble"]["reason"] == "no NVIDIA driver here"


def test_a_new_ingest_knows_the_trouble_that_left_the_stream(
    node_a, ingest, redis_client
) -> None:
    gpu = make_gpu(node_a)
    send(redis_client, "raw.node-a", trouble("hung", "all 4 GPUs hang"))
    ingest.round()
    ingest.ingest.lease.release()
    redis_client.delete("raw.node-a", broadcast.DETAIL + "node-a")
    send(redis_client, "raw.node-a", sample(reading(gpu.uuid)))
    Stepped(redis_client).round()
    assert detail(redis_client)["trouble"]["state"] == "hung"


def test_the_newest_trouble_wins_over_one_that_is_read_again(
    ingest, redis_client
) -> None:
    now = time.time()
    send(redis_client, "raw.node-a", trouble("hung"), at=now - 2)
    send(redis_client, "raw.node-a", trouble("ok"), at=now - 1)
    ingest.round()
    again = Stepped(redis_client)
    again.round()
    assert again.ingest.intake.inboxes["node-a"].trouble.state == "ok"


def test_a_trouble_that_is_none_is_refused_and_said(
    ingest, redis_client, caplog
) -> None:
    send(redis_client, "raw.node-a", trouble("on fire"))
    ingest.round()
    assert redis_client.get("telemetry.trouble.node-a") is None
    assert "state: not a word of this field" in caplog.text
