"""Which Gpus belong together."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.protocol.hardware import Link, LinkKind
from telemetry.rules.gpu_groups import best_connected, pair_scores, rank

pytestmark = pytest.mark.pure

EIGHT = [f"GPU-{n}" for n in range(8)]


def islands(*groups: str) -> list[Link]:
    """NVLink inside each group of indices, the sockets' interconnect between."""
    links = []
    for a, b in combinations("01234567", 2):
        near = any(a in group and b in group for group in groups)
        kind = LinkKind.NVLINK if near else LinkKind.SYS
        links.append(Link(f"GPU-{a}", f"GPU-{b}", kind))
    return links


def test_a_job_is_put_inside_one_island_even_when_its_gpus_are_scattered() -> None:
    links = islands("0246", "1357")
    assert best_connected(EIGHT[1:], links, count=4) == (
        "GPU-1",
        "GPU-3",
        "GPU-5",
        "GPU-7",
    )


def test_equal_choices_go_to_the_first_gpus() -> None:
    assert best_connected(EIGHT, [], count=2) == ("GPU-0", "GPU-1")
    assert best_connected(EIGHT, islands("01234567"), count=3) == tuple(EIGHT[:3])


def test_the_slowest_pair_rules() -> None:
    # 0-1-2 has two NVLinks and one SYS; 3-4-5 three PIX: a ring is as slow as its
    # slowest hop.
    links = [
        Link("GPU-0", "GPU-1", LinkKind.NVLINK),
        Link("GPU-1", "GPU-2", LinkKind.NVLINK),
        Link("GPU-0", "GPU-2", LinkKind.SYS),
        *(
            Link(f"GPU-{a}", f"GPU-{b}", LinkKind.PIX)
            for a, b in [(3, 4), (4, 5), (3, 5)]
        ),
    ]
    assert best_connected(EIGHT, links, count=3) == ("GPU-3", "GPU-4", "GPU-5")


def test_asking_for_more_than_there_are_is_an_error() -> None:
    with pytest.raises(ValueError, match="9 of 8"):
        best_connected(EIGHT, [], count=9)
    assert best_connected(EIGHT, [], count=0) == ()


def test_many_gpus_are_chosen_by_growing_and_still_fill_one_island() -> None:
    many = [f"G{n:02d}" for n in range(32)]
    links = [
        Link(a, b, LinkKind.NVLINK)
        for a, b in combinations(many, 2)
        if int(a[1:]) // 16 == int(b[1:]) // 16
    ]
    chosen = best_connected(many[3:], links, count=14)
    assert len({int(uuid[1:]) // 16 for uuid in chosen}) == 1


@given(
    st.lists(
        st.tuples(
            st.integers(0, 5), st.integers(0, 5), st.sampled_from(list(LinkKind))
        ).filter(lambda x: x[0] != x[1]),
        max_size=15,
    ),
    st.integers(1, 6),
)
def test_brute_force_finds_nothing_better(pairs, count) -> None:
    uuids = [f"GPU-{n}" for n in range(6)]
    links = [Link(f"GPU-{a}", f"GPU-{b}", kind) for a, b, kind in pairs]
    scores = pair_scores(links)
    best = max(rank(subset, scores) for subset in combinations(uuids, count))
    assert rank(best_connected(uuids, links, count=count), scores) == best
