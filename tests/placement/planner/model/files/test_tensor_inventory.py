"""Bare tensor lists: states exact, layers grouped, broken headers refused."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.planner.model.files.safetensors import parse_safetensors_header
from placement.planner.model.files.tensor_inventory import (
    TensorInfo,
    spec_from_inventory,
)
from placement.planner.values.errors import BadInput, SpecInvalid

pytestmark = pytest.mark.pure


def make_header(*tensors, dtype="F32"):
    """A header whose tensors lie one after another."""
    header, at = {}, 0
    width = {"F32": 4, "BF16": 2, "I64": 8}[dtype]
    for name, shape in tensors:
        size = width
        for length in shape:
            size *= length
        header[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [at, at + size],
        }
        at += size
    return header


def as_file(header, data_bytes=0):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"\0" * data_bytes


BLOCKS = [
    ("model.embed_tokens.weight", (100, 8)),
    *((f"model.layers.{i}.self_attn.q_proj.weight", (8, 8)) for i in range(12)),
    *((f"model.layers.{i}.mlp.up_proj.weight", (16, 8)) for i in range(12)),
    ("model.norm.weight", (8,)),
    ("lm_head.weight", (100, 8)),
]


def test_layers_are_grouped_by_number_in_numeric_order():
    spec = parse_safetensors_header(make_header(*BLOCKS))

    names = [layer.name for layer in spec.layers]
    assert names[0] == "embedding"
    assert names[1:13] == [f"model.layers.{i}" for i in range(12)]
    assert names[-1] == "head"


def test_states_are_exact():
    spec = parse_safetensors_header(make_header(*BLOCKS, dtype="BF16"))

    assert spec.parameter_count == 2 * 800 + 12 * (64 + 128) + 8
    assert spec.stored_bytes == 2 * spec.parameter_count
    assert spec.dtype == "bf16"


def test_the_whole_file_its_beginning_and_the_header_alone_agree():
    header = make_header(*BLOCKS)
    whole = as_file(header, 100)

    expected = parse_safetensors_header(header)
    assert parse_safetensors_header(whole) == expected
    assert parse_safetensors_header(json.dumps(header).encode()) == expected


def test_activations_of_a_bare_list_are_called_a_guess():
    assert parse_safetensors_header(make_header(*BLOCKS)).activations_are_a_guess


def test_integer_tensors_are_no_parameters():
    header = make_header(("a.0.weight", (4, 4)))
    header["ids"] = {"dtype": "I64", "shape": [4], "data_offsets": [64, 96]}

    assert parse_safetensors_header(header).parameter_count == 16


def test_tied_tensors_are_counted_once():
    tensors = [
        TensorInfo("wte", (10, 4), "fp32"),
        TensorInfo("h.0.w", (4, 4), "fp32"),
        TensorInfo("lm_head", (10, 4), "fp32"),
    ]
    spec = spec_from_inventory(
        tensors, name="m", source="onnx", tied_groups=[["wte", "lm_head"]]
    )

    assert spec.parameter_count == 56


def broken(**changes):
    entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16], **changes}
    return {"w.0": entry}


@pytest.mark.parametrize(
    "header",
    [
        broken(shape=[-1, 2]),
        broken(shape=[2, "2"]),
        broken(shape=[2.0, 2]),
        broken(shape="22"),
        broken(shape=[10**9, 10**9]),
        broken(shape=[2] * 40),
        broken(dtype="F99"),
        broken(dtype=["F32"]),
        broken(data_offsets=[0, 15]),
        broken(data_offsets=[16, 0]),
        broken(data_offsets=[-16, 0]),
        broken(data_offsets=None),
        {"w.0": 5},
        {},
        {"__metadata__": {"format": "pt"}},
        [],
    ],
)
def test_a_broken_header_is_refused(header):
    with pytest.raises(SpecInvalid):
        parse_safetensors_header(header)


def test_overlapping_tensors_are_refused():
    header = {**broken(), "w.1": broken()["w.0"]}

    with pytest.raises(SpecInvalid, match="overlap"):
        parse_safetensors_header(header)


def test_data_beyond_the_end_of_the_file_is_refused():
    data = as_file(broken())

    with pytest.raises(SpecInvalid, match="beyond the end"):
        parse_safetensors_header(data, file_bytes=len(data) + 15)


def test_a_name_that_appears_twice_is_refused():
    entry = json.dumps(broken()["w.0"])
    text = f'{{"w": {entry}, "w": {entry}}}'.encode()

    with pytest.raises(SpecInvalid, match="twice"):
        parse_safetensors_header(text)


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader(data):
    with pytest.raises(BadInput):
        parse_safetensors_header(data)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["dtype", "shape", "data_offsets", "a.0"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_no_json_crashes_the_reader(value):
    try:
        spec = parse_safetensors_header({"w.0": value})
    except BadInput:
        return
    assert spec.parameter_count > 0
