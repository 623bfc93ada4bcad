"""Cases as JSON: the reference answers, brute force over small ones, bad fields."""

import itertools
import json
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.planner.reference.split_cases import split
from placement.planner.values.errors import BadInput

pytestmark = pytest.mark.pure

DATA = Path(__file__).parents[3] / "data" / "placement"
CONTIGUOUS = json.loads((DATA / "contiguous.json").read_text())
OTHER = {case["kind"]: case for case in json.loads((DATA / "other.json").read_text())}
FEW = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize("case", CONTIGUOUS, ids=lambda case: case["id"])
def test_contiguous_references_reach_their_optimum(case):
    got = split(case)
    assert got["max_ratio"] == pytest.approx(case["optimum"]["max_ratio"], rel=1e-12)
    assert set(got) == {"max_ratio", "device_order", "bounds", "loads"}
    check_contiguous(got, case["layer_bytes"], case["free_bytes"])


def check_contiguous(got, layers, frees):
    """Check that an answer is a plan: every layer once, and the stated ratio."""
    order, bounds = got["device_order"], got["bounds"]
    assert len(set(order)) == len(order)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, len(layers), len(order) + 1)
    loads = [sum(layers[a:b]) for a, b in itertools.pairwise(bounds)]
    assert got["loads"] == {
        str(gpu): load for gpu, load in zip(order, loads, strict=True)
    }
    ratios = [
        Fraction(load, frees[gpu]) if load else Fraction(0)
        for gpu, load in zip(order, loads, strict=True)
    ]
    assert got["max_ratio"] == float(max(ratios)) <= 1


def best_contiguous(layers, frees):
    """The smallest largest ratio over every order and every cut, empty Gpus allowed."""
    ways = itertools.combinations_with_replacement(
        range(len(layers) + 1), len(frees) - 1
    )
    segments = [
        [sum(layers[a:b]) for a, b in itertools.pairwise((0, *cuts, len(layers)))]
        for cuts in ways
    ]
    best = None
    for order in itertools.permutations(frees):
        for loads in segments:
            pairs = list(zip(loads, order, strict=True))
            if all(load <= free for load, free in pairs):
                ratio = max(Fraction(load, free or 1) for load, free in pairs)
                best = ratio if best is None else min(best, ratio)
    return best


@FEW
@given(
    st.lists(st.one_of(st.just(0), st.integers(0, 9)), min_size=1, max_size=6),
    st.lists(st.integers(0, 25), min_size=1, max_size=4),
    st.sampled_from([1, 10**9 + 7, 10**40 + 1]),
)
def test_brute_force_agrees_to_the_last_byte(layers, frees, scale):
    layers, frees = [n * scale for n in layers], [n * scale for n in frees]
    got = split({"layer_bytes": layers, "free_bytes": frees})
    expected = best_contiguous(layers, frees)
    if expected is None:
        assert got["feasible"] is False and got["max_ratio"] is None
        assert got["reason"]
    else:
        assert got["max_ratio"] == float(expected)
        check_contiguous(got, layers, frees)


def test_loads_that_differ_by_one_byte_in_10_to_the_40_are_told_apart():
    big = 10**40
    got = split({"layer_bytes": [big, 1, big], "free_bytes": [2 * big, 2 * big - 1]})
    assert got["bounds"] == [0, 2, 3] and got["device_order"][0] == 0


def test_more_gpus_than_layers_leaves_gpus_empty():
    got = split({"layer_bytes": [5], "free_bytes": [9, 20, 9, 20, 3]})
    assert (got["device_order"], got["loads"]) == ([1], {"1": 5})


def test_sixteen_gpus_of_three_classes_are_solved():
    frees = [100 + 50 * (gpu % 3) for gpu in range(16)]
    layers = [1 + layer % 7 for layer in range(96)]
    check_contiguous(split({"layer_bytes": layers, "free_bytes": frees}), layers, frees)


def test_the_order_of_gpus_is_irrelevant_and_more_room_is_never_worse():
    case = CONTIGUOUS[1]
    layers, frees = case["layer_bytes"], case["free_bytes"]
    ratios = {
        split({"layer_bytes": layers, "free_bytes": list(order)})["max_ratio"]
        for order in itertools.permutations(frees)
    }
    more = split({"layer_bytes": layers, "free_bytes": [*frees[:2], frees[2] * 2]})
    assert len(ratios) == 1 and more["max_ratio"] <= ratios.pop()


# --- pipelines ---


def test_the_pipeline_reference_reaches_its_optimum():
    case = OTHER["pipeline_1f1b"]
    got = split(case)
    assert set(got) == set(case["optimum"])
    assert got["iteration_ms"] == case["optimum"]["iteration_ms"]


layer = st.fixed_dictionaries(
    {
        "state_bytes": st.integers(0, 20),
        "act_bytes_per_microbatch": st.integers(0, 9),
        "fwd_ms": st.integers(0, 5),
        "bwd_ms": st.integers(0, 9),
    }
)
card = st.fixed_dictionaries(
    {"free_bytes": st.integers(0, 120), "speed": st.sampled_from([1.0, 0.6, 0.3])}
)


def best_pipeline(layers, gpus, pieces):
    """The shortest iteration over every number of stages, order and cut."""
    best = None
    for stages in range(1, min(len(gpus), len(layers)) + 1):
        for order in itertools.permutations(gpus, stages):
            for cuts in itertools.combinations(range(1, len(layers)), stages - 1):
                times = []
                for i, (a, b) in enumerate(itertools.pairwise((0, *cuts, len(layers)))):
                    part = layers[a:b]
                    need = sum(
                        one["state_bytes"]
                        + min(stages - i, pieces) * one["act_bytes_per_microbatch"]
                        for one in part
                    )
                    if need > order[i]["free_bytes"]:
                        break
                    work = sum(one["fwd_ms"] + one["bwd_ms"] for one in part)
                    times.append(work / order[i]["speed"])
                else:
                    whole = sum(times) + (pieces - 1) * max(times)
                    best = whole if best is None else min(best, whole)
    return best


@FEW
@given(
    st.lists(layer, min_size=1, max_size=6),
    st.lists(card, min_size=1, max_size=4),
    st.integers(1, 6),
)
def test_brute_force_agrees_for_pipelines(layers, gpus, pieces):
    got = split(
        {
            "kind": "pipeline_1f1b",
            "layers": layers,
            "gpus": gpus,
            "microbatches": pieces,
        }
    )
    expected = best_pipeline(layers, gpus, pieces)
    if expected is None:
        assert got["feasible"] is False and got["iteration_ms"] is None
        return
    assert got["iteration_ms"] == pytest.approx(expected, rel=1e-9)
    times = got["stage_ms"]
    assert got["iteration_ms"] == pytest.approx(
        sum(times) + (pieces - 1) * max(times), rel=1e-9
    )
    stages = len(times)
    for i, (a, b) in enumerate(itertools.pairwise(got["bounds"])):
        gpu, part = gpus[got["device_order"][i]], layers[a:b]
        kept = min(stages - i, pieces)
        assert (
            sum(
                one["state_bytes"] + kept * one["act_bytes_per_microbatch"]
                for one in part
            )
            <= gpu["free_bytes"]
        )


# --- shards and moves ---


def test_the_shard_reference_reaches_its_optimum():
    case = OTHER["zero_coalesce"]
    got = split(case)
    assert got["max_ratio"] == pytest.approx(case["optimum"]["max_ratio"], rel=1e-11)
    assert got["shards_per_gpu"] == case["optimum"]["shards_per_gpu"]
    assert got["gpus_used"] == case["optimum"]["gpus_used"]


@FEW
@given(
    st.integers(1, 6),
    st.integers(0, 40),
    st.integers(0, 12),
    st.lists(st.integers(0, 60), min_size=1, max_size=4),
)
def test_brute_force_agrees_for_shards(shards, state, fixed, frees):
    got = split(
        {
            "kind": "zero_coalesce",
            "state_bytes": state,
            "shards": shards,
            "fixed_bytes_per_used_gpu": fixed,
            "free_bytes": frees,
        }
    )
    best = None
    for counts in itertools.product(range(shards + 1), repeat=len(frees)):
        used = [(n, free) for n, free in zip(counts, frees, strict=True) if n]
        loads = [(fixed + Fraction(n * state, shards), free) for n, free in used]
        if sum(counts) != shards or any(load > free for load, free in loads):
            continue
        key = (len(used), max(load / (free or 1) for load, free in loads))
        best = key if best is None else min(best, key)
    if best is None:
        assert got["feasible"] is False
    else:
        assert (got["gpus_used"], got["max_ratio"]) == (best[0], float(best[1]))
        assert sum(got["shards_per_gpu"]) == shards


def test_the_move_reference_is_decided_alike():
    case = OTHER["move_decision"]
    assert split(case) == {name: case[name] for name in ("gain_s", "cost_s", "move")}
    assert split({**case, "iters_left": 194})["move"] is False
    assert split({**case, "iters_left": None})["move"] is False


# --- invalid cases
# ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "field"),
    [
        ([], "case"),
        ({}, "layer_bytes"),
        ({"kind": "tree"}, "kind"),
        ({"layer_bytes": [1], "free_bytes": []}, "free_bytes"),
        ({"layer_bytes": [1, -1], "free_bytes": [1]}, "layer_bytes[1]"),
        ({"layer_bytes": [True], "free_bytes": [1]}, "layer_bytes[0]"),
        ({"layer_bytes": [1.5], "free_bytes": [1]}, "layer_bytes[0]"),
        ({"layer_bytes": [float("nan")], "free_bytes": [1]}, "layer_bytes[0]"),
        ({"layer_bytes": [10**61], "free_bytes": [1]}, "layer_bytes[0]"),
        ({"layer_bytes": [1], "free_bytes": list(range(40))}, "gpus"),
        (
            {**OTHER["pipeline_1f1b"], "gpus": [{"free_bytes": 1, "speed": 0}]},
            "gpus[0].speed",
        ),
        ({**OTHER["pipeline_1f1b"], "layers": [3]}, "layers[0]"),
        ({**OTHER["zero_coalesce"], "shards": 0}, "shards"),
        ({**OTHER["move_decision"], "bytes_per_s": 0}, "bytes_per_s"),
        ({**OTHER["move_decision"], "iters_left": "many"}, "iters_left"),
    ],
)
def test_bad_fields_are_named(case, field):
    with pytest.raises(BadInput) as refused:
        split(case)
    assert field in refused.value.fields
