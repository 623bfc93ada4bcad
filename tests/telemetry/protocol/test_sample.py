"""Samples of nodes that are not trusted."""

import json

import pytest
from msgspec.structs import replace

from telemetry.protocol.errors import MessageRefused
from telemetry.protocol.hardware import Backend, NodeInfo
from telemetry.protocol.message import MESSAGE_MOST_BYTES
from telemetry.protocol.sample import (
    COMMAND_LENGTH,
    MOST_PROCESSES,
    MOST_PROCESSES_PER_NODE,
    MOST_XIDS,
    GpuAnswer,
    GpuReading,
    MigInstance,
    NodeSample,
    NodeTrouble,
    ProcessReading,
    Throttle,
    XidEvent,
    read_message,
)
from telemetry.protocol.trouble import REASON_LENGTH, TroubleState

pytestmark = pytest.mark.pure

PROCESS = ProcessReading(
    pid=4242,
    uid=1001,
    user="alice",
    command="python train.py",
    memory_bytes=10 * 2**30,
    sm_pct=70,
    started_at=1_700_000_000.0,
    job=7,
)
GPU = GpuReading(
    uuid="GPU-1",
    util_pct=93,
    memory_util_pct=40,
    memory_used_bytes=11 * 2**30,
    memory_reserved_bytes=2**29,
    memory_total_bytes=80 * 2**30,
    temperature_celsius=71,
    power_watts=350.4,
    power_limit_watts=400.0,
    sm_clock_mhz=1395,
    memory_clock_mhz=1593,
    pstate=0,
    throttle=(Throttle.SW_POWER_CAP,),
    energy_joules=12.5,
    ecc_corrected=0,
    ecc_uncorrected=0,
    remap_pending=False,
    remap_failure=False,
    memory_temperature_celsius=80,
    fan_pct=55,
    encoder_pct=12,
    decoder_pct=3,
    row_remap_corrected=1,
    row_remap_uncorrected=0,
    retired_pages=2,
    retired_pages_pending=True,
    pcie_gen=4,
    pcie_width=16,
    pcie_tx_bytes_per_second=10**9,
    pcie_rx_bytes_per_second=2 * 10**9,
    nvlink_tx_bytes_per_second=3 * 10**11,
    nvlink_rx_bytes_per_second=0,
    xids=(XidEvent(79, 1_700_000_000.5), XidEvent(31, 1_700_000_000.7)),
    mig_instances=(MigInstance("MIG-1", "1g.10gb", 10 * 2**30, None),),
    processes=(PROCESS,),
)
SAMPLE = NodeSample(
    node="node-a", at=1_700_000_001.0, gpus=(GPU,), seq=3, load1=0.5, took_seconds=0.06
)


def sample(*, process: dict | None = None, gpu: dict | None = None, **changes) -> str:
    """A valid Sample message with some values changed at one level."""
    values = json.loads(SAMPLE.to_message())
    values["gpus"][0] |= gpu or {}
    if process is not None:
        values["gpus"][0]["processes"][0] |= process
    return json.dumps({**values, **changes})


def test_a_sample_reads_back_as_it_was_written() -> None:
    assert NodeSample.from_message(SAMPLE.to_message(), node="node-a") == SAMPLE


def test_every_key_of_the_contract_is_there_even_when_the_card_cannot_say() -> None:
    mute = NodeSample(node="n", at=1.0, gpus=(GpuReading(uuid="GPU-1"),))
    told = json.loads(mute.to_message())
    assert told["load1"] is None
    for key in ("util_pct", "memory_used_bytes", "throttle", "processes"):
        assert told["gpus"][0][key] is None
    assert NodeSample.from_message(mute.to_message(), node="n") == mute


def test_what_most_cards_lack_takes_no_room_where_it_is_missing() -> None:
    told = json.loads(
        NodeSample(node="n", at=1.0, gpus=(GpuReading(uuid="GPU-1"),)).to_message()
    )["gpus"][0]
    rare = {
        "fan_pct",
        "pcie_gen",
        "nvlink_tx_bytes_per_second",
        "xids",
        "mig_instances",
    }
    assert rare.isdisjoint(told)


def test_a_trouble_reads_back_and_a_long_reason_is_cut() -> None:
    trouble = NodeTrouble("n", TroubleState.WEDGED, "child 7 survives SIGKILL", 5.0)
    assert read_message(trouble.to_message(), node="n") == trouble
    long = replace(trouble, reason="x\n" * 500)
    told = read_message(long.to_message(), node="n")
    assert len(told.reason) == REASON_LENGTH
    assert "\n" not in told.reason


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"state": "bored"}, "state"),
        ({"state": None}, "state"),
        ({"reason": 7}, "reason"),
        ({"reason": "x" * 301}, "reason"),
        ({"reason": "a\nb"}, "reason"),
        ({"at": None}, "at"),
    ],
)
def test_garbage_in_a_trouble_is_refused_with_the_field(changes, field) -> None:
    trouble = NodeTrouble("n", TroubleState.HUNG, "", 5.0)
    told = json.loads(trouble.to_message()) | changes
    with pytest.raises(MessageRefused) as refused:
        read_message(json.dumps(told))
    assert refused.value.field == field


def test_a_gpu_without_processes_is_not_a_gpu_that_cannot_say() -> None:
    nobody = replace(SAMPLE, gpus=(replace(GPU, processes=()),))
    assert NodeSample.from_message(nobody.to_message()).gpus[0].processes == ()


def test_a_stream_holds_rosters_and_samples() -> None:
    roster = NodeInfo(node="n", backend=Backend.SIMULATED, gpus=())
    assert read_message(roster.to_message(at=1.0), node="n") == roster
    assert read_message(SAMPLE.to_message(), node="node-a") == SAMPLE
    with pytest.raises(MessageRefused) as refused:
        read_message('{"v":1,"kind":"gossip"}')
    assert refused.value.field == "kind"


def test_unknown_keys_of_a_newer_node_are_ignored() -> None:
    assert read_message(sample(colour="green", gpu={"noise": 3})) is not None


@pytest.mark.parametrize(
    ("gpu", "field"),
    [
        ({"util_pct": 101}, "util_pct"),
        ({"util_pct": 255}, "util_pct"),
        ({"util_pct": -1}, "util_pct"),
        ({"util_pct": 50.5}, "util_pct"),
        ({"util_pct": "50"}, "util_pct"),
        ({"util_pct": True}, "util_pct"),
        ({"memory_used_bytes": 81 * 2**30}, "memory_used_bytes"),
        ({"memory_used_bytes": -5}, "memory_used_bytes"),
        ({"memory_total_bytes": 2**50}, "memory_total_bytes"),
        ({"temperature_celsius": 255}, "temperature_celsius"),
        ({"power_watts": 4_294_967.295}, "power_watts"),
        ({"power_watts": []}, "power_watts"),
        ({"sm_clock_mhz": 2**32 - 1}, "sm_clock_mhz"),
        ({"pstate": 32}, "pstate"),
        ({"state": "fine"}, "state"),
        ({"state": None}, "state"),
        ({"state": []}, "state"),
        ({"throttle": ["too_hot"]}, "throttle[0]"),
        ({"throttle": "sw_thermal"}, "throttle"),
        ({"throttle": ["sw_thermal"] * 20}, "throttle"),
        ({"throttle": [{}]}, "throttle[0]"),
        ({"ecc_uncorrected": -1}, "ecc_uncorrected"),
        ({"remap_pending": 1}, "remap_pending"),
        ({"fan_pct": 101}, "fan_pct"),
        ({"encoder_pct": -1}, "encoder_pct"),
        ({"pcie_gen": 40}, "pcie_gen"),
        ({"pcie_tx_bytes_per_second": 10**15}, "pcie_tx_bytes_per_second"),
        ({"nvlink_rx_bytes_per_second": 1.5}, "nvlink_rx_bytes_per_second"),
        ({"retired_pages": 10**9}, "retired_pages"),
        ({"retired_pages_pending": "no"}, "retired_pages_pending"),
        ({"xids": 79}, "xids"),
        ({"xids": [{"code": 79, "at": 1}] * (MOST_XIDS + 1)}, "xids"),
        ({"xids": [{"code": 0, "at": 1}]}, "xids[0].code"),
        ({"xids": [{"code": 79}]}, "xids[0].at"),
        ({"mig_instances": [{}]}, "mig_instances[0].uuid"),
        ({"mig_instances": [{"uuid": "M"}] * 17}, "mig_instances"),
        ({"processes": {}}, "processes"),
        ({"processes": [1]}, "processes[0]"),
        ({"processes": [{"pid": 1}] * (MOST_PROCESSES + 1)}, "processes"),
    ],
)
def test_garbage_in_a_reading_is_refused_with_the_field(gpu, field) -> None:
    with pytest.raises(MessageRefused) as refused:
        NodeSample.from_message(sample(gpu=gpu))
    assert refused.value.field == f"gpus[0].{field}"


@pytest.mark.parametrize(
    ("process", "field"),
    [
        ({"pid": 0}, "pid"),
        ({"pid": -1}, "pid"),
        ({"pid": 2**31}, "pid"),
        ({"uid": -1}, "uid"),
        ({"uid": 2**32}, "uid"),
        ({"user": "x" * 65}, "user"),
        ({"user": "a\x1b[31m"}, "user"),
        ({"command": "x" * 121}, "command"),
        ({"command": "a\nb"}, "command"),
        ({"command": "a\u202eb"}, "command"),
        ({"sm_pct": 101}, "sm_pct"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"started_at": 1e300}, "started_at"),
        ({"job": "7"}, "job"),
        ({"job": 2**63}, "job"),
    ],
)
def test_garbage_in_a_process_is_refused_with_the_field(process, field) -> None:
    with pytest.raises(MessageRefused) as refused:
        NodeSample.from_message(sample(process=process))
    assert refused.value.field == f"gpus[0].processes[0].{field}"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"at": None}, "at"),
        ({"at": 1e12}, "at"),
        ({"seq": -1}, "seq"),
        ({"seq": None}, "seq"),
        ({"load1": "high"}, "load1"),
        ({"took_seconds": -1}, "took_seconds"),
        ({"gpus": "all"}, "gpus"),
    ],
)
def test_garbage_in_a_sample_is_refused_with_the_field(changes, field) -> None:
    with pytest.raises(MessageRefused) as refused:
        NodeSample.from_message(sample(**changes))
    assert refused.value.field == field


def test_the_same_gpu_twice_is_refused() -> None:
    twice = json.loads(sample())["gpus"] * 2
    with pytest.raises(MessageRefused, match="twice"):
        NodeSample.from_message(sample(gpus=twice))


def test_more_processes_than_a_message_may_hold_are_refused() -> None:
    mine = {"pid": 1}
    crowd = [
        {"uuid": f"GPU-{n}", "processes": [mine] * MOST_PROCESSES} for n in range(9)
    ]
    assert len(crowd) * MOST_PROCESSES > MOST_PROCESSES_PER_NODE
    with pytest.raises(MessageRefused, match="processes, at most"):
        NodeSample.from_message(sample(gpus=crowd))


def test_the_most_crowded_node_still_sends_what_a_reader_takes() -> None:
    # Four bytes a letter, on every process of every Gpu.
    loud = replace(PROCESS, command="\U0001f600" * COMMAND_LENGTH)
    crowd = NodeSample(
        node="n",
        at=1.0,
        gpus=tuple(
            replace(GPU, uuid=f"GPU-{n}", processes=(loud,) * MOST_PROCESSES)
            for n in range(64)
        ),
    )
    message = crowd.to_message()
    assert len(message) <= MESSAGE_MOST_BYTES
    told = NodeSample.from_message(message)
    assert len(told.gpus) == 64
    assert sum(len(gpu.processes or ()) for gpu in told.gpus) == MOST_PROCESSES_PER_NODE


def test_only_a_gpu_that_answered_can_be_used() -> None:
    assert GPU.answers
    for state in (GpuAnswer.LOST, GpuAnswer.HUNG, GpuAnswer.ERROR):
        assert not GpuReading(uuid="GPU-1", state=state).answers
