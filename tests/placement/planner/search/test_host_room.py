"""What offloading may take of the nodes' memory and drives."""

import json

import pytest

from placement.planner.cli.main import main
from placement.planner.model.sharding import Sharding
from placement.planner.model.well_known import well_known_spec
from placement.planner.search.host_room import (
    HostRoom,
    host_room,
    needs_by_node,
    offloaded_state,
)
from placement.planner.search.planner import plan
from placement.planner.values.gpu_list import offers_from_list
from placement.planner.values.workload import Workload

GIB = 2**30
LLAMA = well_known_spec("llama-3-8b")
ASKED = Workload(batch=8, sequence_length=512, precision="mixed_fp16")


def gpus(count: int = 1, *, each: int = 8, **fields: object):
    """RTX 3090s, so many a node."""
    row = {"name": "NVIDIA GeForce RTX 3090", "free_bytes": 24 * 10**9, **fields}
    return offers_from_list([{**row, "node": f"n{n // each}"} for n in range(count)])


def test_mixed_precision_keeps_14_bytes_a_parameter():
    spec = well_known_spec("gpt2")
    need = offloaded_state(spec, ASKED.replace(offload="cpu")).need(1, 0)
    assert need.memory_bytes == pytest.approx(14 * spec.parameter_count, rel=1e-4)
    assert need.disk_bytes == 0
    whole = ASKED.replace(offload="cpu", offload_parameters=True)
    more = offloaded_state(spec, whole).need(1, 0)
    assert more.memory_bytes - need.memory_bytes == 2 * spec.parameter_count


def test_without_a_master_copy_the_host_keeps_what_it_steps():
    spec = well_known_spec("gpt2")
    asked = Workload(precision="fp32", offload="cpu")
    need = offloaded_state(spec, asked).need(1, 0)
    assert need.memory_bytes == pytest.approx(16 * spec.parameter_count, rel=1e-4)


def test_copies_of_one_node_add_up_and_shards_do_not():
    offers = gpus(4, each=2)
    asked = ASKED.replace(offload="cpu")

    def needs(strategy: str) -> list[int]:
        ranks = [(one, Sharding(strategy=strategy, data_degree=4)) for one in offers]
        found = needs_by_node(LLAMA, asked, ranks)
        assert sorted(found) == ["n0", "n1"]
        return [need.memory_bytes for need in found.values()]

    alone = offloaded_state(LLAMA, asked).need(1, 0).memory_bytes
    pinned = offloaded_state(LLAMA, asked).need(0, 2).memory_bytes
    assert needs("ddp") == [2 * alone + pinned] * 2
    assert needs("fsdp") == [pytest.approx(alone / 2 + pinned, abs=2)] * 2


def test_what_is_known_is_the_least_of_the_nodes():
    offers = [*gpus(1, host_free_bytes=5 * GIB), *gpus(1)]
    assert host_room(offers) == HostRoom(5 * GIB, None)
    assert host_room(offers, 2 * GIB).memory_bytes == 2 * GIB
    assert host_room(gpus(1)) == HostRoom()


@pytest.mark.parametrize(
    ("memory_gib", "disk_gib", "place", "words"),
    [
        (None, None, "cpu", "GiB of the memory of n0. How much of it is free is unkn"),
        (200, 0, "cpu", "of the memory of n0, which has 200.0 GiB free."),
        (64, None, "nvme", "on the drive of n0. How much of it is free is unknown."),
        (64, 500, "nvme", "on the drive of n0, which has 500.0 GiB free."),
    ],
)
def test_a_plan_says_what_it_takes_of_its_node(memory_gib, disk_gib, place, words):
    offers = gpus(
        host_free_bytes=None if memory_gib is None else memory_gib * GIB,
        disk_free_bytes=None if disk_gib is None else disk_gib * GIB,
    )
    best = plan(LLAMA, ASKED, offers).best
    assert best.workload.offload == place
    assert any(words in note for note in best.notes)
    kept = best.host_memory_bytes if place == "cpu" else best.host_disk_bytes
    assert kept > 14 * LLAMA.parameter_count


def test_a_node_with_too_little_refuses_with_the_numbers_and_what_would_do():
    offers = gpus(host_free_bytes=64 * GIB, disk_free_bytes=10 * GIB)
    found = plan(LLAMA, ASKED, offers)
    assert found.best is None
    (lost,) = [one for one in found.refusals if one.strategy == "single"]
    assert lost.code == "host-memory"
    assert "64.0 GiB of its memory and 10.0 GiB of its drive" in lost.reason
    need = float(lost.cheapest_change.split()[0])
    assert lost.cheapest_change == f"{need} GiB of free host memory on each node"
    roomy = gpus(host_free_bytes=int((need + 0.1) * GIB), disk_free_bytes=0)
    assert plan(LLAMA, ASKED, roomy).best.workload.offload == "cpu"


def test_offload_that_was_asked_for_is_refused_too():
    asked = ASKED.replace(offload="cpu", offload_parameters=True)
    found = plan(LLAMA, asked, gpus(host_free_bytes=64 * GIB))
    assert found.best is None
    assert {one.code for one in found.refusals} >= {"host-memory"}


def test_nodes_share_what_fsdp_keeps():
    """One node lacks the memory for it. Two nodes have enough together."""
    few = {"host_free_bytes": 80 * GIB, "disk_free_bytes": 0, "free_bytes": 8 * 10**9}
    network = {"network_bytes_per_second": 12e9}
    asked = ASKED.replace(batch=4, sequence_length=128)
    alone = plan(LLAMA, asked, gpus(2, each=2, **few))
    assert alone.best is None
    both = plan(LLAMA, asked, gpus(4, each=2, **few, **network))
    assert both.best is not None
    assert len(both.best.nodes) == 2
    assert both.best.host_memory_bytes <= 80 * GIB


def test_the_command_takes_the_nodes_memory_and_disk(tmp_path, capsys):
    file = tmp_path / "gpus.json"
    file.write_text(json.dumps([{"name": "RTX 3090", "free_bytes": 24 * 10**9}]))
    asked = ["plan", "llama-3-8b", "--gpus", str(file), "--precision", "mixed_fp16"]
    asked += ["--no-quantization", "--json"]
    assert main([*asked, "--host-memory", "64", "--disk", "10"]) == 0
    (lost,) = [
        one
        for one in json.loads(capsys.readouterr().out)["refusals"]
        if one["strategy"] == "single"
    ]
    assert lost["code"] == "host-memory"
    assert main([*asked, "--host-memory", "-1"]) == 2
    assert "host-memory: must be from 0 to 1,048,576 GiB" in capsys.readouterr().err
