"""TensorBoard's event files, written by TensorBoard, are read without it."""

import io
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from placement.rules.event_file import MOST_POINTS, MOST_RECORD_BYTES, read_scalars

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
    read_scalars(io.BytesIO(data), curves)
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


def test_many_points_are_thinned(tmp_path):
    events = [of_summary(step, scalar("loss", 1.0)) for step in range(3 * MOST_POINTS)]
    points = read(written(tmp_path, events))["loss"]
    assert MOST_POINTS <= len(points) <= 2 * MOST_POINTS
    assert points[0][0] == 0 and points[-1][0] == 3 * MOST_POINTS - 1


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
