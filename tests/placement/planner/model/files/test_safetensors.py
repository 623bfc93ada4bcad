"""Sharded checkpoints: an index alone gives names; with its headers all is known."""

import pytest

from placement.planner.model.files.safetensors import (
    parse_safetensors_header,
    safetensors_tensors,
)
from placement.planner.model.files.safetensors_shards import (
    index_alone,
    joined,
    read_index,
    spec_of_index,
)
from placement.planner.values.errors import SpecInvalid

pytestmark = pytest.mark.pure


def header(*tensors):
    made, at = {}, 0
    for name, shape in tensors:
        size = 4 * shape[0] * shape[1]
        made[name] = {
            "dtype": "F32",
            "shape": list(shape),
            "data_offsets": [at, at + size],
        }
        at += size
    return made


FIRST = header(("wte.weight", (100, 8)), ("h.0.fc.weight", (8, 8)))
SECOND = header(("h.1.fc.weight", (8, 8)), ("lm_head.weight", (100, 8)))
INDEX = {
    "metadata": {"total_size": 4 * (2 * 800 + 2 * 64)},
    "weight_map": {
        **dict.fromkeys(FIRST, "model-00001-of-00002.safetensors"),
        **dict.fromkeys(SECOND, "model-00002-of-00002.safetensors"),
    },
}


def shards(*headers):
    return [safetensors_tensors(one) for one in headers]


def test_an_index_with_all_headers_is_exact():
    spec = spec_of_index(INDEX, shards(SECOND, FIRST), name="m")

    whole = parse_safetensors_header(
        header(*((name, one["shape"]) for name, one in (FIRST | SECOND).items())),
        name="m",
    )
    assert spec == whole
    assert spec.stored_bytes == INDEX["metadata"]["total_size"]
    assert [layer.name for layer in spec.layers] == ["embedding", "h.0", "h.1", "head"]


def test_an_index_alone_says_what_is_known_and_what_is_missing():
    said = str(index_alone(INDEX))

    assert "4 tensors in 2 files, 6,912 bytes in all" in said
    assert "no shapes" in said
    assert "config.json" in said


def test_a_shard_that_is_missing_is_named():
    with pytest.raises(SpecInvalid, match="model-00002-of-00002"):
        spec_of_index(INDEX, shards(FIRST), name="m")


def test_a_tensor_that_the_index_does_not_name_is_refused():
    other = header(("h.9.fc.weight", (8, 8)))
    with pytest.raises(SpecInvalid, match="not in the index"):
        spec_of_index(INDEX, shards(FIRST, SECOND, other), name="m")


def test_shards_that_name_one_tensor_twice_are_no_one_model():
    with pytest.raises(SpecInvalid, match="two of the files"):
        joined(shards(FIRST, FIRST))


def test_headers_are_believed_over_a_wrong_total():
    index = INDEX | {"metadata": {"total_size": 5}}
    spec = spec_of_index(index, shards(FIRST, SECOND), name="m")

    assert any("headers count" in note for note in spec.notes)


@pytest.mark.parametrize(
    ("index", "field"),
    [
        ([], "weight_map"),
        ({}, "weight_map"),
        ({"weight_map": {}}, "weight_map"),
        ({"weight_map": ["a"]}, "weight_map"),
        ({"weight_map": {"a": 5}}, "weight_map.a"),
        ({"weight_map": {"a": "x" * 300}}, "weight_map.a"),
        ({"weight_map": {"a": "b"}, "metadata": []}, "metadata"),
        (
            {"weight_map": {"a": "b"}, "metadata": {"total_size": -1}},
            "metadata.total_size",
        ),
        (
            {"weight_map": {"a": "b"}, "metadata": {"total_size": 10**400}},
            "metadata.total_size",
        ),
        (
            {"weight_map": {"a": "b"}, "metadata": {"total_size": float("nan")}},
            "metadata.total_size",
        ),
    ],
)
def test_a_broken_index_names_its_field(index, field):
    with pytest.raises(SpecInvalid) as caught:
        read_index(index)

    assert caught.value.field == field
