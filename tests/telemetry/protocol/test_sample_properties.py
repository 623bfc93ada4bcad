"""Whatever a node sends, the answer is a Sample or a refusal."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.protocol.errors import MessageRefused
from telemetry.protocol.sample import (
    GpuAnswer,
    GpuReading,
    MigInstance,
    NodeSample,
    ProcessReading,
    Throttle,
    XidEvent,
    read_message,
)

pytestmark = pytest.mark.pure

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner)
    ),
    max_leaves=8,
)
KEYS = st.sampled_from(
    [
        "uuid",
        "state",
        "util_pct",
        "memory_used_bytes",
        "throttle",
        "processes",
        "pid",
        "xids",
    ]
)


def maybe(strategy):
    """The strategy, or None: the card cannot say."""
    return st.none() | strategy


TEXT = st.text(alphabet=st.characters(categories=["L", "N", "P"]), max_size=40)
PROCESSES = st.builds(
    ProcessReading,
    pid=st.integers(1, 2**22),
    uid=maybe(st.integers(0, 2**32 - 1)),
    user=maybe(TEXT),
    command=TEXT,
    memory_bytes=maybe(st.integers(0, 2**40)),
    sm_pct=maybe(st.integers(0, 100)),
    started_at=maybe(st.floats(0, 2e9)),
    job=maybe(st.integers(0, 2**63 - 1)),
)
READINGS = st.builds(
    GpuReading,
    uuid=st.uuids().map(lambda x: f"GPU-{x}"),
    state=st.sampled_from(GpuAnswer),
    util_pct=maybe(st.integers(0, 100)),
    memory_used_bytes=maybe(st.integers(0, 80 * 2**30)),
    memory_total_bytes=maybe(st.just(80 * 2**30)),
    power_watts=maybe(st.floats(0, 2000)),
    throttle=maybe(st.lists(st.sampled_from(Throttle), unique=True).map(tuple)),
    remap_failure=maybe(st.booleans()),
    fan_pct=maybe(st.integers(0, 100)),
    pcie_tx_bytes_per_second=maybe(st.integers(0, 10**11)),
    xids=st.lists(
        st.builds(XidEvent, code=st.integers(1, 200), at=st.floats(0, 4e9)), max_size=3
    ).map(tuple),
    mig_instances=st.lists(
        st.builds(MigInstance, uuid=st.just("MIG-1"), name=TEXT), max_size=2
    ).map(tuple),
    processes=maybe(st.lists(PROCESSES, max_size=4).map(tuple)),
)
SAMPLES = st.builds(
    NodeSample,
    node=st.just("n"),
    at=st.floats(0, 4e9),
    gpus=st.lists(READINGS, max_size=5, unique_by=lambda x: x.uuid).map(tuple),
    seq=st.integers(0, 2**40),
    load1=maybe(st.floats(0, 500)),
)


@given(SAMPLES)
def test_every_sample_reads_back_as_it_was_written(sample: NodeSample) -> None:
    assert read_message(sample.to_message(), node="n") == sample


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_and_nothing_else(data: bytes) -> None:
    with pytest.raises(MessageRefused):
        read_message(data)


@given(st.dictionaries(KEYS, JSON), JSON)
def test_random_json_is_refused_or_read_and_nothing_else(gpu, rest) -> None:
    message = {"v": 1, "kind": "sample", "at": 1, "seq": 1, "gpus": [gpu, rest]}
    try:
        read_message(json.dumps(message))
    except MessageRefused as refused:
        assert refused.field.startswith("gpus")
