"""TensorBoard's event files, written by TensorBoard, are read without it."""

import io
import itertools
import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from placement.rules.event_file import (
    MOST_CHART_BYTES,
    MOST_POINTS,
    MOST_RECORD_BYTES,
    MOST_TAGS,
    ReadBudget,
    read_scalars,
    thinned,
)

pytestmark = pytest.mark.pure


def written(folder, events):
    """Return the bytes of an event file."""
    writer = EventFileWriter(str(folder))
    for event in events:
        writer.add_event(event)
    writer.close()
    (path,) = folder.iterdir()
    return path.read_bytes()


def of_summary(step, *values):
    return Event(wall_time=1.0, step=step, summary=Summary(value=values))


def scalar(tag, number):
    return Summary.Value(tag=tag, simple_value=number)


def read(data):
    curves = {}
    read_scalars(io.BytesIO(data), curves, ReadBudget())
    return curves


@pytest.fixture
def data(tmp_path):
    line = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
    double = struct.pack("<d", 0.25)
    tensors = {
        "acc": TensorProto(dtype=1, float_val=[0.5], tensor_shape=TensorShapeProto()),
        "lr": TensorProto(dtype=2, tensor_content=double),
        "vector": TensorProto(dtype=1, float_val=[0.5], tensor_shape=line),
        "text": TensorProto(dtype=7, string_val=[b"no number"]),
    }
    values = [Summary.Value(tag=tag, tensor=one) for tag, one in tensors.items()]
    return written(
        tmp_path,
        [
            of_summary(0, scalar("loss", 2.3), scalar("bad", float("nan"))),
            Event(wall_time=1.0, graph_def=b"x" * (MOST_RECORD_BYTES + 1)),
            of_summary(3, scalar("loss", 2.0), *values),
        ],
    )


def test_scalars_of_both_forms_are_read_and_all_else_is_left_out(data):
    assert read(data) == {
        "loss": [(0, 2.3), (3, 2.0)],
        "acc": [(3, 0.5)],
        "lr": [(3, 0.25)],
    }
    cut = read(data[:-9])
    assert cut == {"loss": [(0, 2.3)]}


def test_many_points_are_thinned_evenly():
    curve = [(step, 1.0) for step in range(3 * MOST_POINTS)]
    points = thinned({"loss": curve})["loss"]
    assert len(points) == MOST_POINTS
    assert points[0] == curve[0] and points[-1] == curve[-1]
    gaps = {after[0] - before[0] for before, after in itertools.pairwise(points)}
    assert gaps <= {3, 4}


def test_many_tags_with_long_names_stay_small():
    names = [f"{number:03}" + "\U0001f600" * 97 for number in range(2 * MOST_TAGS)]
    curves = {
        name: [(2**40 + 2000 * at + step, -1.234567e-30) for step in range(1000)]
        for at, name in enumerate(names)
    }
    kept = thinned(curves)
    rows = [
        {"step": step, tag: value} for tag, row in kept.items() for step, value in row
    ]
    assert len(kept) == MOST_TAGS
    assert len(json.dumps(rows)) <= MOST_CHART_BYTES


def of_record(message):
    return struct.pack("<QI", len(message), 0) + message + bytes(4)


def nested(*numbers, inner):
    """Return a message inside messages, with these numbers of the fields."""
    for number in reversed(numbers):
        size, length = len(inner), b""
        while size > 127:
            size, length = size >> 7, length + bytes([size & 127 | 128])
        inner = bytes([number << 3 | 2]) + length + bytes([size]) + inner
    return inner


@pytest.mark.parametrize(
    "message",
    [
        bytes(MOST_RECORD_BYTES),
        nested(5, 1, 8, inner=bytes(MOST_RECORD_BYTES - 20)),
        nested(5, inner=b"\x0a\x00" * (MOST_RECORD_BYTES // 2 - 20)),
        b"",
    ],
    ids=["zeros", "nested", "empty values", "empty records"],
)
def test_a_file_of_tiny_fields_ends_at_the_budget(message):
    budget = ReadBudget(fields=1000)
    file = io.BytesIO(of_record(message) * (1 if message else 2000))
    read_scalars(file, {}, budget)
    assert budget.is_spent and budget.fields == -1


def test_the_bytes_of_all_files_are_limited(data):
    budget, curves = ReadBudget(bytes=len(data)), {}
    read_scalars(io.BytesIO(data), curves, budget)
    assert not budget.is_spent and budget.bytes > MOST_RECORD_BYTES, "one is skipped"
    for _ in range(2000):
        read_scalars(io.BytesIO(data), curves, budget)
    assert budget.is_spent
    assert len(curves["loss"]) < 2000


def test_a_spoiled_file_ends_early(data):
    @settings(max_examples=60, deadline=None)
    @given(at=st.integers(0, len(data) - 1), byte=st.integers(0, 255))
    def spoiled(at, byte):
        assert set(read(data[:at] + bytes([byte]) + data[at + 1 :])) is not None

    spoiled()

    @settings(max_examples=60, deadline=None)
    @given(st.binary(max_size=200))
    def framed(message):
        head = struct.pack("<QI", len(message), 0)
        assert all(map(len, read(head + message + bytes(4)).values()))

    framed()
