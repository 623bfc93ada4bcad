"""Rosters of nodes that are not trusted."""

import json
from itertools import combinations

import pytest
from msgspec.structs import replace

from telemetry.protocol.errors import MessageRefused
from telemetry.protocol.hardware import (
    MOST_GPUS,
    Backend,
    GpuInfo,
    HostCapacity,
    Isolation,
    Link,
    LinkKind,
    NodeInfo,
    gpu_class_of,
)
from telemetry.protocol.message import MESSAGE_MOST_BYTES

pytestmark = pytest.mark.pure

GPU = GpuInfo(
    uuid="GPU-1",
    index=0,
    name="NVIDIA A100-SXM4-80GB",
    gpu_class="A100-SXM4-80GB",
    memory_total_bytes=80 * 2**30,
    power_limit_watts=400.0,
    slowdown_celsius=89.0,
    shutdown_celsius=92.0,
    power_limit_min_watts=100.0,
    power_limit_max_watts=400.0,
    sm_clock_max_mhz=1410,
    memory_clock_max_mhz=1593,
    pcie_gen_max=4,
    pcie_width_max=16,
    pci_bus_id="00000000:07:00.0",
    serial="1",
    compute_capability="8.0",
)
NODE = NodeInfo(
    node="node-a",
    backend=Backend.NVML,
    gpus=(GPU, replace(GPU, uuid="GPU-2", index=1)),
    links=(Link("GPU-1", "GPU-2", LinkKind.NVLINK),),
    driver_version="570.124.06",
    cuda_version="12.8",
    boot_id="b",
    isolation=Isolation.WATCHED,
    extras=("deepspeed",),
    host=HostCapacity(2**40, 2**39, None),
    release="0.2.0",
)


def roster(**changes: object) -> str:
    """A valid roster message with some keys changed."""
    return json.dumps({**json.loads(NODE.to_message(at=1.0)), **changes})


def gpus(**changes: object) -> list[dict]:
    """The Gpus of a valid roster, the first one changed."""
    first, *rest = json.loads(NODE.to_message(at=1.0))["gpus"]
    return [{**first, **changes}, *rest]


def test_a_roster_reads_back_as_it_was_written() -> None:
    message = NODE.to_message(at=1.0)
    assert NodeInfo.from_message(message, node="node-a") == NODE
    assert NODE.fast_links == (("GPU-1", "GPU-2"),)


def test_distances_read_back_and_an_older_node_has_none() -> None:
    slow = replace(NODE, links=(Link("GPU-1", "GPU-2", LinkKind.PHB),))
    assert NodeInfo.from_message(slow.to_message(at=1.0), node="node-a") == slow
    told = json.loads(NODE.to_message(at=1.0))
    assert told["links"] == []
    del told["links"]
    assert NodeInfo.from_message(json.dumps(told), node="node-a") == NODE


def test_an_older_node_says_nothing_of_its_own_memory() -> None:
    told = json.loads(NODE.to_message(at=1.0))
    assert told["host"]["memory_free_bytes"] == 2**39
    del told["host"]
    read = NodeInfo.from_message(json.dumps(told), node="node-a")
    assert read == replace(NODE, host=None)


def test_the_largest_node_sends_a_roster_that_a_reader_takes() -> None:
    uuids = [f"GPU-{n:08x}-0000-0000-0000-{n:012x}" for n in range(MOST_GPUS)]
    for kind in (LinkKind.NVLINK, LinkKind.SYS):
        links = tuple(Link(a, b, kind) for a, b in combinations(uuids, 2))
        gpus = tuple(replace(GPU, uuid=x, name="N" * 80) for x in uuids)
        message = replace(NODE, gpus=gpus, links=links).to_message(at=1.0)
        assert len(message) <= MESSAGE_MOST_BYTES
        assert NodeInfo.from_message(message).links == links


def test_the_node_of_a_roster_is_the_stream_and_not_what_it_says() -> None:
    told = roster(node="node-b")
    assert NodeInfo.from_message(told, node="node-a").node == "node-a"


def test_what_the_card_cannot_say_stays_none() -> None:
    told = NodeInfo.from_message(roster(gpus=gpus(power_limit_watts=None)))
    assert told.gpus[0].power_limit_watts is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"v": 2}, "v"),
        ({"v": True}, "v"),
        ({"kind": "sample"}, "kind"),
        ({"at": "now"}, "at"),
        ({"at": -1}, "at"),
        ({"backend": "rocm"}, "backend"),
        ({"isolation": 3}, "isolation"),
        ({"gpus": {}}, "gpus"),
        ({"gpus": [7]}, "gpus[0]"),
        ({"gpus": gpus() * 2}, "gpus"),
        ({"gpus": gpus(uuid="")}, "gpus[0].uuid"),
        ({"gpus": gpus(uuid="x" * 81)}, "gpus[0].uuid"),
        ({"gpus": gpus(uuid="a\nb")}, "gpus[0].uuid"),
        ({"gpus": gpus(index=-1)}, "gpus[0].index"),
        ({"gpus": gpus(name=None)}, "gpus[0].name"),
        ({"gpus": gpus(memory_total_bytes=1.5)}, "gpus[0].memory_total_bytes"),
        ({"gpus": gpus(memory_total_bytes=2**60)}, "gpus[0].memory_total_bytes"),
        ({"gpus": gpus(memory_total_bytes=10**400)}, "gpus[0].memory_total_bytes"),
        ({"gpus": gpus(power_limit_watts=1e9)}, "gpus[0].power_limit_watts"),
        ({"gpus": gpus(mig="yes")}, "gpus[0].mig"),
        ({"gpus": gpus(mig_parent="GPU-9")}, "gpus"),
        ({"fast_links": [["GPU-1", "GPU-9"]]}, "fast_links"),
        ({"fast_links": [["GPU-1", "GPU-1"]]}, "fast_links"),
        ({"fast_links": [["GPU-1"]]}, "fast_links[0]"),
        ({"fast_links": [[["GPU-1"], {}]]}, "fast_links[0][0]"),
        ({"gpus": gpus(shutdown_celsius=5000)}, "gpus[0].shutdown_celsius"),
        ({"gpus": gpus(pcie_gen_max=-1)}, "gpus[0].pcie_gen_max"),
        ({"links": [["GPU-1", "GPU-9", "sys"]]}, "links"),
        ({"links": [["GPU-1", "GPU-2"]]}, "links[0]"),
        ({"links": [["GPU-1", "GPU-2", "warp"]]}, "links[0][2]"),
        ({"links": [["GPU-1", "GPU-2", {}]]}, "links[0][2]"),
        ({"links": {}}, "links"),
        ({"boot_id": "x" * 100}, "boot_id"),
    ],
)
def test_garbage_in_a_roster_is_refused_with_the_field(changes, field) -> None:
    with pytest.raises(MessageRefused) as refused:
        NodeInfo.from_message(roster(**changes))
    assert refused.value.field == field
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"v":NaN}',
        b'{"v":Infinity}',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"v":' + b"9" * 5000 + b"}",
        b'"' + b"x" * MESSAGE_MOST_BYTES + b'"',
    ],
)
def test_what_is_not_a_message_is_refused(data: bytes) -> None:
    with pytest.raises(MessageRefused):
        NodeInfo.from_message(data)


def test_a_node_with_too_many_gpus_is_refused() -> None:
    many = [{**gpus()[0], "uuid": f"GPU-{n}"} for n in range(MOST_GPUS + 1)]
    with pytest.raises(MessageRefused, match="entries"):
        NodeInfo.from_message(roster(gpus=many, fast_links=[]))


@pytest.mark.parametrize(
    ("name", "gib", "expected"),
    [
        ("NVIDIA H200", 140, "H200 140GB"),
        ("Tesla V100-SXM2-32GB", 32, "V100-SXM2-32GB"),
        ("NVIDIA GeForce GTX 1080", 8, "GTX 1080 8GB"),
        ("unnamed", 0, "unnamed"),
    ],
)
def test_cards_of_one_kind_share_a_class(name, gib, expected) -> None:
    assert gpu_class_of(name, gib * 2**30) == expected
