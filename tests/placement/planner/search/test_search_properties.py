"""Brute force agrees on the best of each strategy.

Small models of up to 8 layers on up to 4 Gpus. The time of a step is that of
step_time.py. All Gpus, cuts, orders and degrees are tried here one by one, and the need
of a rank is counted by the estimate alone.
"""

import itertools
from dataclasses import replace
from functools import lru_cache
from operator import attrgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placement.planner.memory.estimate import estimate, rank_costs, tape_workload
from placement.planner.model.sharding import Sharding
from placement.planner.search.link_bandwidth import joined_by_fast_links, slowest_link
from placement.planner.search.memory_passes import (
    memory_bandwidth,
    memory_passes,
    rank_time,
)
from placement.planner.search.planner import plan
from placement.planner.search.step_time import (
    StepTime,
    all_reduce_bytes,
    data_parallel_time,
    exposed_seconds,
    flops_per_second,
    pipeline_time,
    product_sizes,
    tensor_seconds,
    work_of,
)
from placement.planner.values.workload import Workload
from tests.placement.planner.made import GIB
from tests.placement.planner.small import AS_ASKED, LINKS, cards, model, offers_of

pytestmark = pytest.mark.pure

INFINITE = float("inf")
SLACK_RATIO = 0.1
"""Cuts are searched with a bound of the need of stages; see
planner/search/candidates/stage_blocks.py. With this additional room the search finds
the result of brute force without it.
"""


@lru_cache(maxsize=20_000)
def need_bytes(spec_blocks, workload, sharding):
    return estimate(model(spec_blocks), workload, sharding).likely_bytes


@lru_cache(maxsize=20_000)
def work(spec_blocks, workload, sharding, first=0, last=None):
    lowered = tape_workload(workload, sharding)
    tokens = lowered.microbatch(sharding.data_degree) * workload.sequence_length
    costs = rank_costs(model(spec_blocks), workload, sharding)[first:last]
    return work_of(
        costs,
        workload,
        tokens=tokens,
        fetched=sharding.stage == 3,
        sizes=product_sizes(model(spec_blocks)),
        tensor_degree=sharding.tensor_degree,
    )


def pace(offers, workload):
    width = product_sizes(model(1)).width
    return min(flops_per_second(offer, workload, width) for offer in offers)


@lru_cache(maxsize=20_000)
def passes(spec_blocks, workload, sharding, first=0, last=None):
    lowered = tape_workload(workload, sharding)
    tokens = lowered.microbatch(sharding.data_degree) * workload.sequence_length
    return memory_passes(
        rank_costs(model(spec_blocks), workload, sharding)[first:last],
        model(spec_blocks),
        workload,
        tokens=tokens,
        fetched=sharding.stage == 3,
        tensor_degree=sharding.tensor_degree,
    )


def computing_time(blocks, workload, sharding, chosen, *layers):
    """The RankTime of the slowest of some Gpus."""
    return rank_time(
        work(blocks, workload, sharding, *layers).flops / pace(chosen, workload),
        passes(blocks, workload, sharding, *layers),
        min(memory_bandwidth(one) for one in chosen),
        runs=max(sharding.microbatches, workload.accumulation),
        sharding=sharding,
    )


def planned(strategy, blocks, workload, offers):
    found = plan(
        model(blocks),
        workload,
        offers,
        limits=replace(AS_ASKED, strategies=(strategy,)),
        objective="fastest",
    )
    good = [one for one in found.plans if one.fit == "comfortable"]
    return min((one.step_seconds for one in good), default=None)


def more_bytes(offer):
    return int(offer.free_bytes * (1 + SLACK_RATIO)) + 2**26


def roomier(offers):
    return [
        replace(
            one,
            free_bytes=more_bytes(one),
            memory_total_bytes=48 * GIB,
            used_bytes=0,
        )
        for one in offers
    ]


def agree(strategy, blocks, workload, offers, shortest, promised):
    """Check: never better than brute force; with a little more room as good as
    promised.
    """
    found = planned(strategy, blocks, workload, offers)
    if found is not None:
        assert found >= shortest * (1 - 1e-9)
    if promised < INFINITE:
        slack = planned(strategy, blocks, workload, roomier(offers))
        assert slack is not None
        assert slack <= promised * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(
    cards,
    st.sampled_from(LINKS),
    st.sampled_from(["ddp", "zero1", "zero2", "fsdp"]),
    st.integers(1, 6),
    st.integers(2, 6),
)
def test_brute_force_agrees_on_the_best_copies(drawn, links, strategy, blocks, batch):
    offers = offers_of(drawn, links)
    workload = Workload(batch=batch, sequence_length=256)
    best = None
    for count in range(2, min(len(offers), batch) + 1):
        if batch % count:
            continue
        sharding = Sharding(strategy=strategy, data_degree=count)
        need = need_bytes(blocks, workload, sharding)
        for chosen in itertools.combinations(offers, count):
            if min(one.free_bytes for one in chosen) < need:
                continue
            time = data_parallel_time(
                work(blocks, workload, sharding),
                workload,
                busy=computing_time(blocks, workload, sharding, chosen).step_seconds(1),
                degree=count,
                link=slowest_link(chosen),
                strategy=strategy,
            ).total_seconds
            best = time if best is None else min(best, time)
    found = planned(strategy, blocks, workload, offers)

    assert (found is None) == (best is None)
    assert found is None or found == pytest.approx(best)


@settings(max_examples=25, deadline=None)
@given(cards, st.sampled_from(LINKS), st.integers(1, 6), st.integers(1, 6))
def test_brute_force_agrees_on_the_best_tensor_cut(drawn, links, blocks, batch):
    offers = offers_of(drawn, links)
    workload = Workload(batch=batch, sequence_length=256)
    sharding = Sharding(strategy="tensor", tensor_degree=2)
    need = need_bytes(blocks, workload, sharding)
    best = None
    for pair in itertools.combinations(offers, 2):
        if joined_by_fast_links(pair) and min(o.free_bytes for o in pair) >= need:
            asked = work(blocks, workload, sharding)
            link = slowest_link(pair)
            time = computing_time(blocks, workload, sharding, pair).step_seconds(1)
            time += tensor_seconds(asked, workload, degree=2, link=link)
            best = time if best is None else min(best, time)
    found = planned("tensor", blocks, workload, offers)

    assert (found is None) == (best is None)
    assert found is None or found == pytest.approx(best)


def staged_seconds(blocks, workload, teams, spans, base):
    """(matrix products and bubble, step) of stages, each on a team: replicas of tensor
    ranks.
    """
    runs = max(base.microbatches, workload.accumulation)
    whole, computing, averaging, updating, products = [], [], [], [], []
    for team, (first, last) in zip(teams, spans, strict=True):
        asked = work(blocks, workload, base, first, last)
        flat = [one for row in team for one in row]
        busy = computing_time(blocks, workload, base, flat, first, last)
        computing.append(busy.each_seconds)
        products.append(asked.flops / pace(flat, workload))
        updating.append(busy.once_seconds)
        adding = max(
            tensor_seconds(asked, workload, degree=len(row), link=slowest_link(row))
            for row in team
        )
        whole.append(computing[-1] + adding)
        links = [slowest_link(column) for column in zip(*team, strict=True)]
        link = min(links, key=lambda one: one.bytes_per_second)
        moved = all_reduce_bytes(asked.gradient_bytes, base.data_degree)
        averaging.append(exposed_seconds(moved, link, runs * computing[-1]))
    sent = max(averaging) + max(updating)
    if len(teams) > 1:
        costs = rank_costs(model(blocks), workload, base)
        border = max(costs[last - 1].output_bytes for _, last in spans[:-1])
        link = slowest_link([team[0][0] for team in teams])
        sent += (runs + len(teams) - 1) * 2 * border / link.bytes_per_second
    time: StepTime = pipeline_time(whole, runs, sent)
    bare: StepTime = pipeline_time(products, runs, 0.0)
    return bare.total_seconds, time.total_seconds


def cuts(count, stages):
    for inner in itertools.combinations(range(1, count), stages - 1):
        yield list(itertools.pairwise((0, *inner, count)))


def stages_fit(blocks, workload, order, spans, base, room_bytes):
    return all(
        stage_fits(blocks, workload, team, span, base, stage, len(order), room_bytes)
        for stage, (team, span) in enumerate(zip(order, spans, strict=True))
    )


def stage_fits(blocks, workload, team, span, base, stage, stages, room_bytes):
    sharding = replace(
        base,
        first_layer=span[0],
        last_layer=span[1],
        in_flight=min(stages - stage, base.microbatches),
        pipeline_degree=stages,
    )
    need = need_bytes(blocks, workload, sharding)
    return min(room_bytes(one) for row in team for one in row) >= need


def brute_stages(blocks, workload, ways, base, least):
    """(shortest step of all, step that the planner's objective promises).

    Its objective: for each way to form teams the cut and order with the shortest
    matrix products and bubble, of those the shortest step. With a little more room more
    cuts fit. One with shorter products may have a longer step.
    """
    count = blocks + 2
    shortest = promised = INFINITE
    for teams in ways:
        shortest_bare, possible = INFINITE, []
        for stages in range(least, min(len(teams), count) + 1):
            for order in itertools.permutations(teams, stages):
                for spans in cuts(count, stages):
                    asked = (blocks, workload, order, spans, base)
                    if not stages_fit(*asked, more_bytes):
                        continue
                    bare, step = staged_seconds(*asked)
                    possible.append((bare, step))
                    if stages_fit(*asked, attrgetter("free_bytes")):
                        shortest = min(shortest, step)
                        shortest_bare = min(shortest_bare, bare)
        if shortest_bare < INFINITE:
            limit = shortest_bare * (1 + 1e-9)
            longest = max(step for bare, step in possible if bare <= limit)
            promised = min(promised, longest)
    return shortest, promised


@settings(max_examples=20, deadline=None)
@given(cards, st.integers(1, 6), st.integers(1, 6))
def test_brute_force_agrees_on_the_best_pipeline(drawn, blocks, batch):
    offers = offers_of(drawn, "")
    workload = Workload(batch=batch, sequence_length=256)
    pieces = min(batch, 4 * len(offers))
    base = Sharding(strategy="pipeline", microbatches=pieces)
    ways = [[((one,),) for one in offers]]
    brute = brute_stages(blocks, workload, ways, base, 2)

    agree("pipeline", blocks, workload, offers, *brute)


def partitions(members, size):
    """Yield every way to divide some members into teams of a size. The rest is left
    out.
    """
    if len(members) < size:
        yield []
        return
    first, rest = members[0], members[1:]
    for others in itertools.combinations(rest, size - 1):
        left = [one for one in rest if one not in others]
        for way in partitions(left, size):
            yield [(first, *others), *way]
    yield from partitions(rest, size)


@settings(max_examples=10, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.9, 1.4, 2.4]), st.sampled_from([35e12, 71e12])),
        min_size=3,
        max_size=4,
    ),
    st.sampled_from(["", "all", "pairs"]),
    st.integers(1, 4),
    st.integers(2, 4),
)
def test_brute_force_agrees_on_the_best_hybrid(drawn, links, blocks, batch):
    offers = offers_of(drawn, links)
    workload = Workload(batch=batch, sequence_length=256)
    best = (INFINITE, INFINITE)
    for tensor, data in itertools.product((1, 2), (1, 2)):
        # The batch is fixed: copies that would need another one are excluded.
        if tensor * data == 1 or batch % data:
            continue
        stages = len(offers) // (tensor * data)
        pieces = min(batch // data, 4 * stages) if stages > 1 else 1
        base = Sharding(
            strategy="hybrid",
            tensor_degree=tensor,
            data_degree=data,
            zero_stage=1 if data > 1 else 0,
            sequence_parallel=tensor > 1,
            microbatches=pieces,
        )
        ways = []
        for rows in partitions(offers, tensor):
            if all(len(row) == 1 or joined_by_fast_links(row) for row in rows):
                ways += [list(way) for way in partitions(rows, data)]
        least = 1 if tensor * data == 4 else 2
        made = brute_stages(blocks, workload, ways, base, least)
        best = tuple(map(min, best, made))

    agree("hybrid", blocks, workload, offers, *best)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from([0.9, 1.1, 1.3, 1.6]), min_size=2, max_size=4),
    st.integers(1, 6),
)
def test_uneven_shares_fit_wherever_some_shares_do(frees, blocks):
    offers = offers_of([(free, 71e12) for free in frees], "")
    workload = Workload(batch=4, sequence_length=128, precision="fp32")
    some = False
    for count in range(2, len(offers) + 1):
        even = Sharding(strategy="zero1", data_degree=count)
        for chosen in itertools.combinations(offers, count):
            room = [one.free_bytes for one in chosen]
            if min(room) >= need_bytes(blocks, workload, even):
                some = True
            for shares in compositions(2 * count, count):
                some = some or all(
                    need_bytes(
                        blocks,
                        workload,
                        replace(even, share_ratio=share / (2 * count)),
                    )
                    <= free
                    for share, free in zip(shares, room, strict=True)
                )
    limits = replace(AS_ASKED, strategies=("zero1", "zero1_uneven"))
    found = plan(model(blocks), workload, offers, limits=limits).plans

    if some:
        assert any(one.fit == "comfortable" for one in found)


def compositions(total, parts):
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in compositions(total - first, parts - 1):
            yield (first, *rest)
