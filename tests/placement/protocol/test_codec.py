"""Every type of the protocol reads back as it was written, or is refused in words."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.agent.process.job_exec import JobStart
from placement.agent.serving.model_sync import WantedModel
from placement.planner.symbolic.case import Case
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.onnx_external_data import OWN_NAME, ModelFilePart
from placement.planner.values.plan import LeftOut, RejectedStrategy, Shard
from placement.planner.values.tensor_signature import Signature
from placement.protocol.commands import JobLimits, Order, OrderKind, parse_order
from placement.protocol.events import (
    KINDS,
    Belief,
    ChannelFact,
    JobFact,
    Running,
    parse_fact,
)
from placement.protocol.node_refusals import FactRefused, OrderRefused
from placement.protocol.process_commands import (
    ProcessFact,
    ProcessOrder,
    parse_process_fact,
    parse_process_order,
)
from placement.protocol.rendezvous import Meeting, StartCheckpoint
from placement.protocol.serving_frames import (
    Call,
    FrameInvalid,
    checked_call,
    pack,
    unpack,
)
from telemetry.protocol.codec import Malformed, decode, encode, read, to_plain
from telemetry.protocol.coded_error import CodedError
from tests.kinds import mutations, values_of

pytestmark = pytest.mark.pure

MEETING = Meeting(1, (2, 1), "10.0.0.1", 29_500, "f" * 32)
ADDRESSES = st.sampled_from(["", "lab-a", "10.0.0.7"])
NAMES = st.sampled_from(["mlp", "resnet-50", "a.b_c"])
PARTS = values_of(ModelFilePart, name=st.just(OWN_NAME))
RUNNING = values_of(
    Running,
    meeting_address=ADDRESSES,
    worked_at=st.none() | st.floats(0, 2**40, exclude_max=True),
)
FACTS = {
    "job": values_of(JobFact, meeting_address=ADDRESSES),
    "channel": values_of(ChannelFact),
    "jobs": values_of(
        Belief,
        running=st.lists(RUNNING, max_size=2).map(tuple),
        ended=st.lists(values_of(JobFact, meeting_address=ADDRESSES), max_size=2).map(
            tuple
        ),
    ),
}
VALUES = {
    JobStart: values_of(JobStart),
    Case: values_of(Case),
    GpuOffer: values_of(GpuOffer),
    JobLimits: values_of(JobLimits),
    LeftOut: values_of(LeftOut),
    Meeting: st.just(MEETING),
    ModelFilePart: PARTS,
    RejectedStrategy: values_of(RejectedStrategy),
    Shard: values_of(Shard),
    Signature: values_of(Signature),
    StartCheckpoint: values_of(StartCheckpoint),
    WantedModel: values_of(
        WantedModel, name=NAMES, parts=st.tuples(PARTS) | st.just(())
    ),
    **{KINDS[kind]: made for kind, made in FACTS.items()},
}
ORDERS = values_of(
    Order,
    kind=st.sampled_from([OrderKind.STOP, OrderKind.CARRY]),
    gpu_uuids=st.just(("GPU-a",)),
    gpu_indexes=st.just((0,)),
    meeting=st.sampled_from([None, MEETING]),
    environment_folder=st.sampled_from(["", "/home/alice/venv/bin"]),
)
PROCESS_ORDERS = values_of(
    ProcessOrder, pid=st.integers(2, 2**22 - 1), uid=st.integers(1000, 60_000)
)
WORDS = st.from_regex(r"[a-z0-9]{1,64}", fullmatch=True)
PROCESS_FACTS = values_of(ProcessFact, nonce=WORDS)
CALLS = values_of(
    Call,
    call=st.just("0" * 32),
    headers=st.just({"content-type": "application/json"}),
    body=st.binary(max_size=9),
)


@pytest.mark.parametrize("kind", VALUES)
@given(st.data())
def test_every_value_reads_back_as_it_was_written(kind, data) -> None:
    value = data.draw(VALUES[kind])
    assert decode(kind, encode(value)) == value
    assert read(kind, to_plain(value)) == value


@pytest.mark.parametrize("kind", VALUES)
@given(st.data())
def test_changed_json_is_a_value_within_bounds_or_malformed(kind, data) -> None:
    text = encode(data.draw(VALUES[kind]))
    changed = data.draw(mutations(json.loads(text)))
    try:
        value = decode(kind, json.dumps(changed))
    except (Malformed, CodedError) as error:
        assert len(str(error)) < 300
    else:
        assert decode(kind, encode(value)) == value


@given(ORDERS)
def test_every_order_reads_back_from_its_signed_text(order) -> None:
    assert parse_order(order.payload()) == order
    assert parse_order(order.payload()).payload() == order.payload()


@given(PROCESS_ORDERS)
def test_every_order_about_a_process_reads_back_from_its_signed_text(order) -> None:
    assert parse_process_order(order.payload()) == order


@pytest.mark.parametrize(
    ("orders", "parse"), [(ORDERS, parse_order), (PROCESS_ORDERS, parse_process_order)]
)
@given(st.data())
def test_a_changed_order_is_an_order_or_refused(orders, parse, data) -> None:
    payload = data.draw(orders).payload()
    changed = data.draw(mutations(json.loads(payload)))
    try:
        order = parse(json.dumps(changed))
    except OrderRefused as refusal:
        assert refusal.code in ("malformed", "protected")
        assert len(str(refusal)) < 300
    else:
        assert parse(order.payload()) == order


@pytest.mark.parametrize("kind", FACTS)
@given(st.data())
def test_a_changed_fact_is_a_fact_or_refused(kind, data) -> None:
    message = {"v": 1, "kind": kind, **to_plain(data.draw(FACTS[kind]))}
    changed = data.draw(mutations(json.loads(json.dumps(message))))
    if isinstance(changed, dict):
        try:
            parse_fact(changed)
        except FactRefused as refusal:
            assert len(str(refusal)) < 300


@pytest.mark.parametrize("at", [-1, -0.5, 2**40, 10**400, math.nan, True, "1", [1], {}])
def test_a_kernels_time_that_is_none_never_refuses_the_nodes_report(at) -> None:
    job = {"job": 7, "attempt": 1}
    told = {"v": 1, "kind": "jobs", "at": 2.0, "running": [job | {"worked_at": at}]}
    belief = parse_fact(told)
    assert isinstance(belief, Belief) and belief.running == (Running(7, 1),)
    told["running"] = [job | {"worked_at": 1.5}]
    belief = parse_fact(told)
    assert isinstance(belief, Belief) and belief.running[0].worked_at == 1.5


@given(PROCESS_FACTS, st.data())
def test_a_changed_fact_about_a_process_is_one_or_refused(fact, data) -> None:
    assert parse_process_fact(fact.message()) == fact
    changed = data.draw(mutations(fact.message()))
    if isinstance(changed, dict):
        try:
            parse_process_fact(changed)
        except FactRefused as refusal:
            assert len(str(refusal)) < 300


@given(CALLS, st.data())
def test_a_changed_call_is_a_call_or_refused(call, data) -> None:
    head, body = unpack(call.frame())
    assert checked_call(head, body) == call
    changed = data.draw(mutations(head))
    try:
        checked_call(*unpack(pack(changed, body)))
    except FrameInvalid as refusal:
        assert len(str(refusal)) < 300
