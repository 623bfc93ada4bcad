"""Exact splits: the reference cases, brute force, and bounds on work done."""

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.planner.search.bottleneck_partition import split_bytes
from placement.planner.search.chain_split import (
    ChainProblem,
    classes_of,
    split_chain,
    split_fixed_order,
)
from placement.planner.search.equal_shards import zero_coalesce

pytestmark = pytest.mark.pure

DATA = Path(__file__).parents[3] / "data" / "placement"
CONTIGUOUS = json.loads((DATA / "contiguous.json").read_text())
OTHER = {case["kind"]: case for case in json.loads((DATA / "other.json").read_text())}


@pytest.mark.parametrize("case", CONTIGUOUS, ids=lambda case: case["id"])
def test_reference_cases_reach_their_optimum(case):
    split = split_bytes(case["layer_bytes"], case["free_bytes"])

    assert split.bottleneck == pytest.approx(case["optimum"]["max_ratio"], rel=1e-12)
    check_covers(split, case["layer_bytes"], case["free_bytes"])


def check_covers(split, layers, frees):
    assert split.pieces[0].first == 0
    assert split.pieces[-1].last == len(layers)
    for before, after in itertools.pairwise(split.pieces):
        assert before.last == after.first
    gpus = [piece.gpu for piece in split.pieces]
    assert len(set(gpus)) == len(gpus)
    for piece in split.pieces:
        load = sum(layers[piece.first : piece.last])
        assert load <= frees[piece.gpu]
        assert piece.load == pytest.approx(load / frees[piece.gpu])


def brute_force(layers, frees):
    """The best largest load / free over every order and every cut."""
    best = None
    count = len(layers)
    for used in range(1, len(frees) + 1):
        for order in itertools.permutations(range(len(frees)), used):
            for cuts in itertools.combinations(range(1, count), used - 1):
                bounds = (0, *cuts, count)
                ratio = max(
                    sum(layers[a:b]) / frees[gpu] if frees[gpu] else float("inf")
                    for gpu, (a, b) in zip(
                        order, itertools.pairwise(bounds), strict=True
                    )
                )
                if ratio <= 1 and (best is None or ratio < best):
                    best = ratio
    return best


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=8),
    st.lists(st.integers(0, 120), min_size=1, max_size=4),
)
def test_brute_force_agrees(layers, frees):
    split = split_bytes(layers, frees)
    expected = brute_force(layers, frees)

    if expected is None:
        assert split is None
    else:
        assert split.bottleneck == pytest.approx(expected, rel=1e-9)
        check_covers(split, layers, frees)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=1, max_size=8),
    st.lists(st.integers(1, 120), min_size=1, max_size=4),
)
def test_brute_force_agrees_for_a_fixed_order(layers, frees):
    prefix = [0, *itertools.accumulate(layers)]
    problem = ChainProblem(
        len(layers),
        [[i] for i in range(len(frees))],
        lambda first, last, kind, stage: (prefix[last] - prefix[first]) / frees[kind],
    )
    split = split_fixed_order(problem, range(len(frees)), high=1e9)

    count = len(layers)
    expected = min(
        max(
            sum(layers[a:b]) / free
            for free, (a, b) in zip(
                frees, itertools.pairwise((0, *cuts, count)), strict=True
            )
        )
        for cuts in itertools.combinations_with_replacement(
            range(count + 1), len(frees) - 1
        )
    )
    assert split.bottleneck == pytest.approx(expected, rel=1e-9)


def test_identical_gpus_are_one_class():
    assert classes_of([5, 3, 5, 5]) == [[0, 2, 3], [1]]


def test_no_gpu_with_room_means_no_split():
    assert split_bytes([10], [5]) is None
    assert split_bytes([10], [0, 0]) is None


def chain(layers, classes, frees):
    prefix = [0, *itertools.accumulate(layers)]
    return ChainProblem(
        len(layers),
        classes,
        lambda first, last, kind, stage: (prefix[last] - prefix[first]) / frees[kind],
    )


def test_work_is_bounded_for_96_layers_on_8_different_gpus():
    layers = [50 + 7 * (i % 13) for i in range(96)]
    frees = [1000 + 90 * i for i in range(8)]
    problem = chain(layers, [[i] for i in range(8)], frees)

    assert split_chain(problem, low=0.0, high=1.0) is not None
    assert problem.probes <= 40
    assert problem.steps <= problem.probes * 2**8 * 8 / 2


def test_classes_shrink_the_work_for_16_gpus():
    layers = [50 + 7 * (i % 13) for i in range(96)]
    problem = chain(layers, [list(range(8)), list(range(8, 16))], [700, 900])

    assert split_chain(problem, low=0.0, high=1.0) is not None
    assert problem.steps <= problem.probes * 81 * 2


def test_zero_coalesce_reaches_the_reference_optimum():
    case = OTHER["zero_coalesce"]
    shard = case["state_bytes"] / case["shards"]
    cut = zero_coalesce(
        shards=case["shards"],
        shard_bytes=shard,
        fixed_bytes=[case["fixed_bytes_per_used_gpu"]] * 4,
        free_bytes=case["free_bytes"],
    )

    assert cut.gpus_used == case["optimum"]["gpus_used"]
    assert cut.max_ratio == pytest.approx(case["optimum"]["max_ratio"], rel=1e-9)
    assert list(cut.shards) == case["optimum"]["shards_per_gpu"]


def brute_coalesce(shards, shard, fixed, frees):
    best = None
    for counts in itertools.product(range(shards + 1), repeat=len(frees)):
        if sum(counts) != shards:
            continue
        ratios = [
            (fixed + n * shard) / free
            for n, free in zip(counts, frees, strict=True)
            if n
        ]
        if max(ratios) <= 1:
            key = (len(ratios), max(ratios))
            best = key if best is None or key < best else best
    return best


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 30),
    st.integers(0, 20),
    st.lists(st.integers(1, 120), min_size=1, max_size=4),
)
def test_brute_force_agrees_for_shards(shards, shard, fixed, frees):
    cut = zero_coalesce(
        shards=shards,
        shard_bytes=shard,
        fixed_bytes=[fixed] * len(frees),
        free_bytes=frees,
    )
    expected = brute_coalesce(shards, shard, fixed, frees)

    if expected is None:
        assert cut is None
    else:
        assert sum(cut.shards) == shards
        assert (cut.gpus_used, cut.max_ratio) == (
            expected[0],
            pytest.approx(expected[1]),
        )
