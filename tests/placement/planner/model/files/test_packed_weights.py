"""Quantized checkpoints: the weights they stand for, and their own bytes."""

import pytest

from placement.planner.model.files.packed_weights import unpacked
from placement.planner.model.files.safetensors import spec_of_tensors
from placement.planner.model.files.tensor_inventory import TensorInfo
from placement.planner.model.quantized_weights import INT8, NF4, Scheme, weight_bytes
from placement.planner.values.errors import SpecInvalid

pytestmark = pytest.mark.pure


def tensors(**shapes):
    """name=(dtype, shape). `__` means a dot."""
    return [
        TensorInfo(name.replace("__", "."), tuple(shape), dtype)
        for name, (dtype, shape) in shapes.items()
    ]


def only(found):
    (one,) = found
    return one


GPTQ = tensors(
    h__0__fc__qweight=("int32", (64 // 8, 96)),
    h__0__fc__qzeros=("int32", (2, 96 // 8)),
    h__0__fc__scales=("fp16", (2, 96)),
    h__0__fc__g_idx=("int32", (64,)),
)
AWQ = tensors(
    h__0__fc__qweight=("int32", (64, 96 // 8)),
    h__0__fc__qzeros=("int32", (2, 96 // 8)),
    h__0__fc__scales=("fp16", (2, 96)),
)


@pytest.mark.parametrize(
    ("group", "scheme"),
    [
        (GPTQ, Scheme("gptq", bits=4, group=32)),
        (AWQ, Scheme("awq", bits=4, group=32)),
    ],
    ids=["gptq", "awq"],
)
def test_groups_of_packed_tensors_are_one_weight(group, scheme):
    made, notes = unpacked(group)

    one = only(made)
    assert (one.name, one.shape, one.product) == ("h.0.fc.weight", (96, 64), (96, 64))
    assert one.packed_bytes == sum(part.stored_bytes for part in group)
    assert one.packed_bytes == weight_bytes(scheme, 96, 64)
    assert "4 bit" in only(notes)


def test_gptq_without_the_rows_order_is_told_by_its_zeros():
    made, _ = unpacked([one for one in GPTQ if not one.name.endswith("g_idx")])

    assert only(made).elements == 96 * 64


def test_bitsandbytes_in_eight_bits():
    group = tensors(
        h__0__fc__weight=("int8", (96, 64)),
        h__0__fc__SCB=("fp32", (96,)),
    )
    one = only(unpacked(group)[0])

    assert (one.elements, one.packed_bytes) == (96 * 64, weight_bytes(INT8, 96, 64))


def test_bitsandbytes_in_four_bits_with_quantized_constants():
    elements = 96 * 64
    group = [
        TensorInfo("h.0.fc.weight", (elements // 2, 1), "int8"),
        TensorInfo("h.0.fc.weight.absmax", (elements // 64,), "int8"),
        TensorInfo("h.0.fc.weight.quant_map", (16,), "fp32"),
        TensorInfo("h.0.fc.weight.nested_absmax", (1,), "fp32"),
        TensorInfo("h.0.fc.weight.nested_quant_map", (256,), "fp32"),
        TensorInfo("h.0.fc.weight.quant_state.bitsandbytes__nf4", (4,), "int8"),
    ]
    one = only(unpacked(group)[0])

    assert one.elements == elements
    assert one.packed_bytes == weight_bytes(NF4, 96, 64)


def test_fp8_with_scales_by_block():
    group = tensors(
        h__0__fc__weight=("fp8", (256, 300)),
        h__0__fc__weight_scale_inv=("fp32", (2, 3)),
        h__0__norm__weight=("bf16", (300,)),
    )
    spec = spec_of_tensors(group, name="m")

    assert spec.is_quantized
    assert spec.parameter_count == 256 * 300 + 300
    assert spec.stored_bytes == weight_bytes(Scheme("fp8"), 256, 300) + 600
    assert spec.trainable_count == 300


def test_mxfp4_blocks_of_experts():
    group = tensors(
        h__0__experts__gate_up_proj_blocks=("int8", (4, 64, 2, 16)),
        h__0__experts__gate_up_proj_scales=("int8", (4, 64, 2)),
    )
    one = only(unpacked(group)[0])

    assert one.elements == 4 * 64 * 2 * 32
    assert one.packed_bytes == 4 * 64 * 2 * 17


def test_what_is_not_packed_stays_as_it_is():
    plain = tensors(
        h__0__lstm__weight_ih_l0=("fp32", (8, 8)),
        h__0__norm__scales=("fp32", (8,)),
        h__0__ids=("int64", (1, 8)),
    )
    made, notes = unpacked(plain)

    assert sorted(one.name for one in made) == sorted(one.name for one in plain)
    assert not notes


@pytest.mark.parametrize(
    "group",
    [
        tensors(h__0__fc__weight=("int8", (96, 64))),
        tensors(h__0__fc__weight_packed=("int32", (96, 8))),
        tensors(h__0__fc__qweight=("int32", (8, 96))),
        tensors(
            h__0__fc__qweight=("int32", (7, 96)),
            h__0__fc__scales=("fp16", (2, 96)),
            h__0__fc__g_idx=("int32", (64,)),
        ),
        tensors(
            h__0__fc__qweight=("int32", (8, 96)), h__0__fc__scales=("fp16", (2, 96))
        ),
        tensors(h__0__fc__qweight=("int32", (8, 0)), h__0__fc__scales=("fp16", (2, 0))),
    ],
)
def test_a_layout_that_is_not_known_is_refused_by_name(group):
    with pytest.raises(SpecInvalid) as caught:
        unpacked(group)

    assert caught.value.field.startswith("h.0.fc")
