"""The card that a type of GRES stands for."""

import pytest

from telemetry.rules.slurm_cards import (
    GB,
    card_of_type,
    memory_of_type,
    read_named_cards,
)

pytestmark = pytest.mark.pure
A100 = "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        # AutoDetect=nvml writes the product's name, and sites shorten it.
        ("nvidia_a100-sxm4-80gb", A100),
        ("a100-sxm4-80gb", A100),
        ("nvidia_geforce_rtx_3090", "NVIDIA GeForce RTX 3090"),
        ("rtx_3090", "NVIDIA GeForce RTX 3090"),
        ("2080_ti", "NVIDIA GeForce RTX 2080 Ti"),
        ("h200", "NVIDIA H200"),
        ("tesla_t4", "Tesla T4"),
        ("mi300x", "AMD Instinct MI300X"),
        # Several cards have these names, with different memory or speed.
        ("a100", None),
        ("v100", None),
        ("80gb", None),
        ("rtx", None),
        ("gpu", None),
        ("nvidia", None),
        ("", None),
        ("../etc/passwd", None),
    ],
)
def test_a_type_is_a_card_only_if_it_can_be_no_other(kind, name) -> None:
    found = card_of_type(kind, {})
    assert (found and found.name) == name


def test_an_admin_names_the_card_of_a_type() -> None:
    named = read_named_cards(f" a100 = {A100} ,,big=NVIDIA H200,")
    assert named == {"a100": A100, "big": "NVIDIA H200"}
    assert memory_of_type("a100", named) == 80 * GB
    assert memory_of_type("a100", {}) == 0
    for wrong in ("a100", "a100=", "=NVIDIA H200", "a100=Matrox G200"):
        with pytest.raises(ValueError, match=wrong):
            read_named_cards(wrong)
