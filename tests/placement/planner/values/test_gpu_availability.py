"""Gpus as offered: what is left, and what makes no sense."""

import pytest

from placement.planner.values.errors import OffersInvalid
from placement.planner.values.gpu_availability import (
    GpuOffer,
    check_offers,
    peak_flops_of,
)
from tests.placement.planner.made import make_offer

pytestmark = pytest.mark.pure


def test_an_offer_survives_json():
    offer = make_offer(3, util_pct=None, link_group="nv")

    assert GpuOffer.from_json(offer.to_json()) == offer


@pytest.mark.parametrize(
    "changes",
    [
        {"free_bytes": -1},
        {"used_bytes": 10**15},
        {"memory_total_bytes": 1.5},
        {"peak_flops": 0.0},
    ],
)
def test_an_offer_that_contradicts_itself_is_refused(changes):
    with pytest.raises(OffersInvalid):
        check_offers([make_offer(0, **changes)])


def test_an_offer_with_other_fields_is_refused():
    with pytest.raises(OffersInvalid):
        GpuOffer.from_json({"uuid": "x"})


@pytest.mark.parametrize(
    ("processes", "util", "share"),
    [(0, 90.0, 1.0), (1, 100.0, 0.5), (1, 20.0, 0.8), (3, None, 0.25)],
)
def test_what_is_left_of_a_busy_gpu(processes, util, share):
    offer = make_offer(0, compute_processes=processes, util_pct=util)

    assert offer.share_ratio == pytest.approx(share)


@pytest.mark.parametrize(
    ("name", "tera"),
    [
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA L40S", 362),
        ("NVIDIA GB200", 2500),
        ("Matrox G200", 60),
    ],
)
def test_cards_are_known_by_name(name, tera):
    assert peak_flops_of(name) == tera * 1e12
