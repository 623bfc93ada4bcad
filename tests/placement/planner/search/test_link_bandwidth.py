"""Links between Gpus: the slowest hop counts, near Gpus go together."""

from dataclasses import replace

import pytest

from placement.planner.model.well_known import well_known_spec
from placement.planner.search.link_bandwidth import (
    BYTES_PER_SECOND,
    fast_groups,
    joined_by_fast_links,
    neighbourhoods,
    pair_link,
    slowest_link,
)
from placement.planner.search.memory_savings import PlanLimits
from placement.planner.search.planner import plan
from placement.planner.values.workload import Workload
from tests.placement.planner.made import make_offer

pytestmark = pytest.mark.pure


def four(word="sys"):
    """Two pairs under one switch each; between the pairs a longer way."""
    offers = [make_offer(index) for index in range(4)]
    made = []
    for index, one in enumerate(offers):
        links = tuple(
            (other.uuid, "pix" if index // 2 == place // 2 else word)
            for place, other in enumerate(offers)
            if other is not one
        )
        made.append(replace(one, links=links))
    return made


def labels(groups):
    return [[one.index for one in group] for group in groups]


def test_a_pair_is_as_far_as_either_of_the_two_says():
    a, b, c, _ = four()

    assert pair_link(a, b).word == "pix"
    assert pair_link(replace(a, links=()), b).word == "pix"
    assert pair_link(a, c).bytes_per_second == BYTES_PER_SECOND["sys"]


def test_a_set_is_as_slow_as_its_slowest_pair():
    offers = four()

    assert slowest_link(offers[:2]).word == "pix"
    assert slowest_link(offers).word == "sys"
    assert slowest_link(offers[:1]).word == "nvlink"


def test_nvlink_joins_gpus_through_others_too():
    ring = [make_offer(index, link_group="nv") for index in range(4)]

    assert joined_by_fast_links(ring)
    assert labels(fast_groups([*ring[:3], make_offer(9)])) == [[0, 1, 2]]


def test_gpus_of_other_nodes_are_a_network_away():
    a = make_offer(0, network_bytes_per_second=1e9)
    b = make_offer(0, node="lab-b", network_bytes_per_second=3e9)

    assert pair_link(a, b).word == "network"
    assert pair_link(a, b).bytes_per_second == 1e9


def test_neighbourhoods_are_the_pairs_then_all():
    assert labels(neighbourhoods(four())) == [[0, 1], [2, 3], [0, 1, 2, 3]]


def test_two_copies_sit_under_one_switch_though_busier():
    offers = [
        replace(one, util_pct=20.0 if one.index in (2, 3) else one.index * 30.0)
        for one in four()
    ]
    found = plan(
        well_known_spec("gpt2-large"),
        Workload(batch=2, sequence_length=64),
        offers,
        max_gpus=2,
        limits=PlanLimits(strategies=("ddp",)),
    ).best

    assert {shard.gpu_label for shard in found.shards} in (
        {"lab-a:0", "lab-a:1"},
        {"lab-a:2", "lab-a:3"},
    )


def across(bytes_per_second):
    return [
        make_offer(
            index,
            node=node,
            uuid=f"{node}{index}",
            link_group=f"nv-{node}",
            network_bytes_per_second=bytes_per_second,
        )
        for node in ("lab-a", "lab-b")
        for index in range(2)
    ]


def test_plans_span_nodes_only_where_the_networks_speed_is_known():
    spec, workload = well_known_spec("gpt2"), Workload(batch=16, sequence_length=1024)
    alone = plan(spec, workload, across(0.0), objective="fastest")
    joined = plan(spec, workload, across(12.5e9), objective="fastest")

    assert not any(one.spans_nodes for one in alone.plans)
    assert any("one by one" in note for note in alone.notes)
    wide = [one for one in joined.plans if one.spans_nodes]
    assert wide
    assert wide[0].nodes == ("lab-a", "lab-b")
    assert any("It spans lab-a, lab-b: a job" in note for note in wide[0].notes)
    assert any("12.5 GB/s" in note for note in joined.notes)


def test_layers_are_never_cut_across_the_network():
    found = plan(
        well_known_spec("gpt2"),
        Workload(batch=16, sequence_length=1024),
        across(12.5e9),
        objective="fastest",
    )
    for one in found.plans:
        for row in one.launch["rank_grid"]:
            assert len({uuid[:5] for uuid in row}) == 1


def test_a_slow_network_leaves_plans_on_their_node():
    found = plan(
        well_known_spec("gpt2"),
        Workload(batch=16, sequence_length=1024),
        across(1e6),
        objective="fastest",
    )

    assert not found.best.spans_nodes
