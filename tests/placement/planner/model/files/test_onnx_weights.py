"""ONNX files: initializers, constants, quantized weights; damage found, bounded."""

import io

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from placement.planner.model.files.onnx_weights import ONNX_DTYPES, parse_onnx
from placement.planner.values.errors import BadInput, SpecInvalid

pytestmark = pytest.mark.pure


def read(data):
    return parse_onnx(io.BytesIO(data), len(data), name="m")


def saved(nodes=(), weights=(), **more):
    graph = helper.make_graph(list(nodes), "g", [], [], list(weights))
    return helper.make_model(graph, **more).SerializeToString()


def array(name, *shape, dtype=numpy.float32):
    return numpy_helper.from_array(numpy.zeros(shape, dtype), name)


def test_the_library_has_the_types_that_are_named_here():
    known = set(TensorProto.DataType.values())

    assert known - set(ONNX_DTYPES) == {TensorProto.UNDEFINED, TensorProto.STRING}


def test_initializers_constants_and_subgraphs_are_found():
    inner = helper.make_graph([], "then", [], [], [array("h.1.w", 4, 4)])
    constant = helper.make_node("Constant", [], ["h.2.w"], value=array("", 2, 4))
    branch = helper.make_node("If", ["c"], ["y"], then_branch=inner)
    spec = read(saved([constant, branch], [array("h.0.w", 8, 4)]))

    assert spec.parameter_count == 32 + 16 + 8
    assert [layer.name for layer in spec.layers] == ["h.0", "h.1", "h.2"]


def test_shapes_and_texts_are_no_parameters():
    text = TensorProto(name="words", data_type=TensorProto.STRING, dims=[1])
    spec = read(saved([], [array("w", 4, 4), array("s", 3, dtype=numpy.int64), text]))

    assert spec.parameter_count == 16


def test_nodes_tell_the_layer_of_a_weight_without_a_name():
    nodes = [
        helper.make_node(
            "MatMul",
            ["x", f"onnx::MatMul_{i}"],
            ["y"],
            name=f"/model/layers.{i}/mlp/fc/MatMul",
        )
        for i in range(3)
    ]
    spec = read(saved(nodes, [array(f"onnx::MatMul_{i}", 4, 4) for i in range(3)]))

    assert [layer.name for layer in spec.layers] == [
        f".model.layers.{i}" for i in range(3)
    ]


def test_quantized_weights_count_as_weights_with_their_scales():
    nodes = [
        helper.make_node("DequantizeLinear", ["w.0", "s.0", "z.0"], ["a"]),
        helper.make_node("QuantizeLinear", ["x", "s.x", "z.x"], ["b"]),
    ]
    weights = [
        array("w.0", 64, 32, dtype=numpy.int8),
        array("s.0", 64),
        array("z.0", 64, dtype=numpy.int8),
        array("s.x"),
        array("z.x", dtype=numpy.uint8),
        array("norm.1", 32),
    ]
    spec = read(saved(nodes, weights))

    assert spec.parameter_count == 64 * 32 + 32
    assert spec.stored_bytes == 64 * 32 + 64 * 4 + 64 + 32 * 4
    assert spec.trainable_count == 32
    assert "quantized" in spec.notes[0]


def test_four_bits_packed_in_bytes_unpack_to_n_by_k():
    node = helper.make_node(
        "MatMulNBits", ["x", "w.0", "s.0"], ["y"], N=96, K=64, bits=4, block_size=32
    )
    packed = array("w.0", 96, 2, 16, dtype=numpy.uint8)
    spec = read(saved([node], [packed, array("s.0", 192)]))

    assert spec.parameter_count == 96 * 64
    assert spec.stored_bytes == 96 * 32 + 192 * 4


def test_external_data_is_not_opened_and_said():
    weight = array("h.0.w", 1000, 1000)
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", "/etc/shadow"
    spec = read(saved([], [weight]))

    assert spec.parameter_count == 10**6
    assert "other files" in spec.notes[0]


def test_data_shorter_than_its_shape_is_refused_by_name():
    weight = array("h.0.w", 4, 4)
    weight.raw_data = weight.raw_data[:-3]

    with pytest.raises(SpecInvalid, match="holds 61 bytes, its shape needs 64") as seen:
        read(saved([], [weight]))
    assert seen.value.field == "h.0.w"


@pytest.mark.parametrize("dims", [[-1, 4], [2**40, 2**40], [2] * 30])
def test_absurd_shapes_are_refused_by_name(dims):
    weight = TensorProto(name="h.0.w", data_type=1, dims=dims)
    with pytest.raises(SpecInvalid) as caught:
        read(saved([], [weight]))
    assert caught.value.field == "h.0.w"


def test_an_element_type_that_is_not_known_is_refused():
    with pytest.raises(SpecInvalid, match="element type 99"):
        read(saved([], [TensorProto(name="w", data_type=99, dims=[1])]))


def length_delimited(number, data):
    size, head = len(data), bytes([number << 3 | 2])
    while size > 127:
        head += bytes([size & 127 | 128])
        size >>= 7
    return head + bytes([size]) + data


def test_graphs_nested_without_end_are_refused():
    graph = b""
    for _ in range(2_000):
        attribute = length_delimited(6, graph)
        graph = length_delimited(1, length_delimited(5, attribute))

    with pytest.raises(SpecInvalid, match="nested deeper"):
        read(length_delimited(7, graph))


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"\xff" * 50, b"\x08\x07", b"\x3a\x7f"]
)
def test_what_is_no_onnx_is_refused(data):
    with pytest.raises(SpecInvalid):
        read(data)


MODEL = saved(
    [helper.make_node("DequantizeLinear", ["w.0", "s.0"], ["a"])],
    [array("w.0", 4, 4, dtype=numpy.int8), array("s.0"), array("h.1", 2, 2)],
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(MODEL) - 1), st.integers(0, 255), st.integers(0, len(MODEL)))
def test_a_damaged_file_is_refused_or_read_and_never_crashes(at, byte, length):
    damaged = bytearray(MODEL)
    damaged[at] = byte
    try:
        spec = read(bytes(damaged[:length]))
    except BadInput:
        return
    assert spec.parameter_count > 0
