"""Peaks by class: the right product, or nothing."""

import pytest

from telemetry.rules.peak_flops import default_weight, peak_flops_of

pytestmark = pytest.mark.pure
GIB = 2**30


@pytest.mark.parametrize(
    ("gpu_class", "tera"),
    [
        ("A100-SXM4-80GB", 312),
        ("A100 80GB PCIe", 312),
        ("H100 80GB HBM3", 989),
        ("H100 PCIe 80GB", 756),
        ("H100 NVL 94GB", 835),
        ("V100-SXM2-32GB", 125),
        ("V100-PCIE-16GB", 112),
        ("A10 23GB", 125),
        ("L4 23GB", 121),
        ("L40S 45GB", 362),
        ("RTX 3090 24GB", 71),
        ("T4 15GB", 65),
        ("T400 4GB", 2.2),
        ("A1000 8GB", 0),
        ("RTX 3090 Ti 24GB", 80),
        ("RTX 3090 Super 24GB", 0),
        ("", 0),
    ],
)
def test_a_class_has_its_data_sheets_figure_or_none(gpu_class, tera):
    assert peak_flops_of(gpu_class) / 1e12 == pytest.approx(tera)


def test_weight_is_memory_in_8_gib_units_and_never_nothing():
    sizes = [0, 4, 8, 12, 24, 40, 80]
    assert [default_weight(gib * GIB) for gib in sizes] == [1, 1, 1, 2, 3, 5, 10]
