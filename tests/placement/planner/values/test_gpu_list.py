"""A list of Gpus in a file: little is required, and every error is named."""

import pytest

from placement.planner.values.errors import OffersInvalid
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.gpu_list import offers_from_list
from tests.placement.planner.made import GIB

pytestmark = pytest.mark.pure


def test_free_bytes_alone_are_enough():
    first, second = offers_from_list([{"free_bytes": GIB}, {"free_bytes": 2 * GIB}])

    assert (first.label, second.label) == ("local:0", "local:1")
    assert first.memory_total_bytes == GIB
    assert second.uuid == "local:1"


def test_what_is_not_free_is_used():
    (one,) = offers_from_list([{"free_bytes": 3, "memory_total_bytes": 10}])

    assert one.used_bytes == 7


def test_the_name_says_how_fast_it_is():
    (one,) = offers_from_list([{"name": "NVIDIA A100-SXM4-80GB", "free_bytes": 1}])

    assert one.peak_flops == 312e12


def test_a_whole_offer_is_read_back():
    (one,) = offers_from_list(
        {
            "gpus": [
                {
                    "uuid": "GPU-1",
                    "node": "lab-a",
                    "index": 3,
                    "name": "NVIDIA L4",
                    "free_bytes": 20 * GIB,
                    "memory_total_bytes": 24 * GIB,
                    "util_pct": 12.5,
                    "compute_processes": 1,
                    "links": [["GPU-2", "pix"]],
                    "health": ["thermal slowdown"],
                    "weight": 3,
                }
            ]
        }
    )

    assert one.links == (("GPU-2", "pix"),)
    assert GpuOffer.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    ("uuid", "node"),
    [
        ("GPU-52a3a85d-3c55-ca3a-a955-82c69ed360fc", "lab_a-1"),
        ("MIG-377e0049-554c-540b-93c6-d0976f8426cb", "gpu01.example.org"),
        ("MIG-GPU-52a3a85d-3c55-ca3a-a955-82c69ed360fc/1/0", "fe80::1"),
    ],
)
def test_names_of_the_portal_and_of_nvidia_are_valid(uuid, node):
    (one,) = offers_from_list([{"free_bytes": 1, "uuid": uuid, "node": node}])

    assert (one.uuid, one.node) == (uuid, node)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ([], "gpus"),
        ({"cards": []}, "gpus"),
        ([3], "gpus[0]"),
        ([{"name": "x"}], "gpus[0].free_bytes"),
        ([{"free_bytes": 1, "colour": 2}], "gpus[0].colour"),
        ([{"free_bytes": -1}], "gpus[0].free_bytes"),
        ([{"free_bytes": 1.5}], "gpus[0].free_bytes"),
        ([{"free_bytes": True}], "gpus[0].free_bytes"),
        ([{"free_bytes": None}], "gpus[0].free_bytes"),
        ([{"free_bytes": 1, "util_pct": "3"}], "gpus[0].util_pct"),
        ([{"free_bytes": 1, "util_pct": float("nan")}], "gpus[0].util_pct"),
        ([{"free_bytes": 1, "speed_ratio": 2}], "gpus[0].speed_ratio"),
        ([{"free_bytes": 1, "links": [["a"]]}], "gpus[0].links"),
        ([{"free_bytes": 1, "links": "a"}], "gpus[0].links"),
        ([{"free_bytes": 1, "health": [3]}], "gpus[0].health"),
        ([{"free_bytes": 1, "bookable": 1}], "gpus[0].bookable"),
        ([{"free_bytes": 1, "node": "x" * 200}], "gpus[0].node"),
        ([{"free_bytes": 1, "node": "a b"}], "gpus[0].node"),
        ([{"free_bytes": 1, "node": "a\nb"}], "gpus[0].node"),
        ([{"free_bytes": 1, "node": ""}], "gpus[0].node"),
        ([{"free_bytes": 1, "uuid": "GPU-1}; touch PWN; #"}], "gpus[0].uuid"),
        ([{"free_bytes": 1, "uuid": "GPU-1\n"}], "gpus[0].uuid"),
        ([{"free_bytes": 1, "uuid": "GPU-\u0661"}], "gpus[0].uuid"),
        ([{"free_bytes": 1, "name": "A100\nb"}], "gpus[0].name"),
        ([{"free_bytes": 1, "health": ["\x1b[2J"]}], "gpus[0].health"),
        ([{"free_bytes": 1, "links": [["a", "\u2028"]]}], "gpus[0].links"),
        ([{"free_bytes": 1, "uuid": "a"}, {"free_bytes": 1, "uuid": "a"}], "a"),
        ([{"free_bytes": 9, "memory_total_bytes": 3}], "local:0"),
        ([{"free_bytes": 1, "links": [["b", "string"]]}], "local:0"),
        ([{"free_bytes": 1}] * 1025, "gpus"),
    ],
)
def test_what_is_wrong_is_named(data, field):
    with pytest.raises(OffersInvalid) as caught:
        offers_from_list(data)

    assert caught.value.field == field
