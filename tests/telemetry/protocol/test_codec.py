"""Every type of the protocols reads back as it was written, or is refused in a word."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, convert

from telemetry.agent.simulated_probe import ScriptFile
from telemetry.agent.simulated_processes import SimulatedClaim
from telemetry.protocol.codec import Line, Malformed, decode, encode, read, to_plain
from telemetry.protocol.hardware import GpuInfo, RosterMessage
from telemetry.protocol.reading import (
    GpuReading,
    MigInstance,
    ProcessReading,
    XidEvent,
)
from telemetry.protocol.sample import AnyMessage, SampleMessage
from telemetry.protocol.trouble import TroubleMessage
from tests.kinds import JSON, mutations, values_of

pytestmark = pytest.mark.pure

KINDS = (
    *(GpuInfo, GpuReading, MigInstance, ProcessReading, XidEvent),
    *(RosterMessage, SampleMessage, TroubleMessage, SimulatedClaim, ScriptFile),
)
# Made once: to make a strategy takes longer than to draw from it.
VALUES = {kind: values_of(kind) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_every_value_reads_back_as_it_was_written(kind, data) -> None:
    value = data.draw(VALUES[kind])
    assert decode(kind, encode(value)) == value
    assert read(kind, json.loads(encode(value))) == value
    assert json.loads(encode(value)) == json.loads(json.dumps(to_plain(value)))


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_changed_json_is_a_value_within_bounds_or_malformed(kind, data) -> None:
    text = encode(data.draw(VALUES[kind]))
    changed = data.draw(mutations(json.loads(text)))
    try:
        value = decode(kind, json.dumps(changed))
    except Malformed as error:
        assert len(str(error)) < 300
        assert str(error).isprintable()
    else:
        assert decode(kind, encode(value)) == value


@given(st.binary(max_size=80) | JSON.map(lambda one: json.dumps(one).encode()))
def test_anything_at_all_is_a_message_or_malformed(data) -> None:
    with pytest.raises(Malformed):
        decode(AnyMessage, data)


class Part(Struct, frozen=True):
    """A part of ``Whole``."""

    name: Line
    size: float = 0.0


class Whole(Struct, frozen=True, forbid_unknown_fields=True):
    """What the tests of the sentences read."""

    parts: tuple[Part, ...]
    count: int = 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"parts":[{"name":7}]}', "parts[0].name: not text"),
        ('{"parts":[{"size":1}]}', "parts[0].name: is missing"),
        ('{"parts":{}}', "parts: not a list"),
        ('{"parts":[],"count":"1"}', "count: not a whole number"),
        ('{"parts":[],"count":1.0}', "count: not a whole number"),
        ('{"parts":[],"count":true}', "count: not a whole number"),
        ('{"parts":[],"odd":1}', "odd: is not a known field"),
        ('{"parts":[],"\\u001b":1}', "?: is not a known field"),
        ('{"parts":[{"name":"a\\u202eb"}]}', "parts[0].name: has control characters"),
        ('{"parts":[{"name":"","size":1e999}]}', "parts[0].size: Number out of range"),
        ("[]", "not an object"),
        ("{", "not JSON: "),
        ('{"parts":[{"name":"","size":NaN}]}', "not JSON: "),
    ],
)
def test_a_refusal_names_the_field_and_says_why(text, said) -> None:
    with pytest.raises(Malformed) as refused:
        decode(Whole, text)
    assert str(refused.value).startswith(said)
    assert len(str(refused.value)) < 200


def test_json_that_is_nested_without_end_is_refused() -> None:
    with pytest.raises(Malformed, match="not JSON"):
        decode(Part, '{"x":' * 5_000)


def test_what_is_too_large_is_not_even_read() -> None:
    with pytest.raises(Malformed, match="40 bytes, at most 39"):
        decode(Whole, '"' + "x" * 38 + '"', most_bytes=39)


def test_half_a_surrogate_pair_and_nan_are_written_so_that_they_can_be_read() -> None:
    assert encode(Part("a\udc80b")) == b'{"name":"a?b","size":0.0}'
    assert encode(Part("", math.nan)) == b'{"name":"","size":null}'


def test_msgspec_itself_makes_no_number_of_a_text() -> None:
    with pytest.raises(ValueError, match="Expected `int`"):
        convert("1", int)
