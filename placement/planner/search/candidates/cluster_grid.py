"""Many equal nodes: tensor x context x pipeline x data, experts, and sharded replicas.

The usual order for 1,024 Gpus: tensor parallel inside a node, pipeline across nodes,
copies of that over the rest (Narayanan et al., SC 2021, arXiv:2104.04473, section 3).
Nodes of one kind are equal here, so a grid is four degrees and not a choice of Gpus,
and thousands of grids are compared by arithmetic. Only the shortest ones are checked
against the memory of their ranks.

Ranks have Megatron-LM's order: tensor ranks next to each other, then context ranks,
then copies, then stages. Traffic between nodes shares a node's network: the bytes that
all Gpus of a node send in a step are divided by `network_bytes_per_second`.

Cost: about (numbers of nodes) x (divisors of the Gpus) ^ 2 sums; see
docs/design/placement.md#many-nodes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, combinations, pairwise, product
from typing import Any

from placement.planner.memory.layer_costs import LayerCost
from placement.planner.memory.parameter_states import widths
from placement.planner.model.sharding import Sharding
from placement.planner.search.candidates.other_schedules import kept_pieces
from placement.planner.search.candidates.search_context import (
    RankPlacement,
    SearchContext,
)
from placement.planner.search.candidates.stage_blocks import with_trained_pieces
from placement.planner.search.candidates.tensor_parallel import tensor_degrees
from placement.planner.search.host_room import host_room, rank_parts
from placement.planner.search.link_bandwidth import (
    NETWORK,
    SlowestLink,
    joined_by_fast_links,
    slowest_link,
)
from placement.planner.search.memory_passes import (
    memory_bandwidth,
    memory_passes,
)
from placement.planner.search.memory_savings import (
    PlanLimits,
    Setting,
    divisors,
    in_runs,
    stages,
)
from placement.planner.search.step_time import (
    StepTime,
    Work,
    all_reduce_bytes,
    efficiency_ratio,
    exposed_seconds,
    host_seconds,
    layer_flops,
    tensor_seconds,
)
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.humanize import gib
from placement.planner.values.objective import SHORT_STEP_SECONDS
from placement.planner.values.plan import Plan
from placement.planner.values.strategies import (
    CONTEXT,
    DDP,
    EXPERT,
    FSDP,
    HSDP,
    HYBRID,
    ZERO1,
    ZERO2,
    Engine,
    Strategy,
)
from telemetry.protocol.sentences import counted, sentence

GRIDS = (DDP, ZERO1, ZERO2, FSDP, HSDP, HYBRID, CONTEXT, EXPERT)
"""The strategies that a grid of many nodes can have."""
MOST_KINDS = 4
"""Most kinds of Gpus in one search: those with the most arithmetic."""
ROOM_CLASS_BYTES = 4 * 2**30
"""Gpus whose free memory differs by less are of one kind."""
MICROBATCHES = (1, 2, 4, 8)
"""Numbers of sequences of one microbatch that are tried."""
MOST_STAGES = 64
VIRTUAL = (1, 2, 3, 4)
"""Numbers of pieces of the model per rank of a pipeline that are tried."""
CONTEXT_DEGREES = (1, 2, 4, 8, 16)
LEAST_CONTEXT_TOKENS = 4096
"""Least number of tokens of a context rank. Fewer do not pay for passing keys on."""
MOST_CHECKS = 400
"""Most grids of one number of nodes whose memory is counted, the shortest steps
first.
"""
EXPERT_TRIPS = 4
"""Times that tokens travel to experts and back in one layer, forward and backward."""


@dataclass(frozen=True, slots=True)
class EqualNodes:
    """Nodes that are used in the same way: the same number of Gpus of each."""

    nodes: tuple[tuple[GpuOffer, ...], ...]
    each: int
    fast: SlowestLink
    """The slowest hop inside one of its nodes."""
    joined: bool
    """Fast links join the Gpus of each node, so that a layer can be cut over them."""
    network: float
    """Bytes per second of the slowest node to others."""
    memory: float
    """Bytes per second of its slowest Gpu's memory in passes over it."""

    def first(self, count: int) -> "EqualNodes":
        """Return the same with fewer nodes."""
        return replace(self, nodes=self.nodes[:count])

    @property
    def offers(self) -> tuple[GpuOffer, ...]:
        """Return its Gpus, node by node."""
        return tuple(offer for node in self.nodes for offer in node)

    @property
    def size(self) -> int:
        """Return the number of Gpus."""
        return len(self.nodes) * self.each

    @property
    def free_bytes(self) -> int:
        """Return the least free bytes of its Gpus."""
        return min(offer.free_bytes for node in self.nodes for offer in node)


@dataclass(slots=True)
class Grid:
    """The degrees of one way to use a pool, and the time of a step with them."""

    strategy: Strategy
    setting: Setting
    tensor: int
    context: int
    pipeline: int
    data: int
    expert: int
    zero_stage: int
    copies: int
    """HSDP: groups of ranks that each hold the whole model; otherwise 1."""
    runs: int
    """Microbatches of one copy of the model in one step."""
    time: StepTime
    virtual: int = 1
    """Pieces of the model on each rank of a pipeline; more than 1: interleaved."""
    engine: Engine = "auto"
    """The library by whose memory rules the ranks are counted."""

    @property
    def size(self) -> int:
        """Return the number of Gpus."""
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def order(self) -> tuple[object, ...]:
        """Return a sort key: the shorter step first, then the simpler grid."""
        return (
            round(self.time.total_seconds, 9),
            self.setting.severity,
            self.pipeline,
            self.virtual,
            self.tensor,
            self.context,
            self.expert,
            self.zero_stage,
            self.copies,
        )

    def sharding(self) -> Sharding:
        """Return the Sharding common to all its ranks."""
        return _sharding(
            strategy=self.strategy.rank_rules or self.strategy.key,
            data_degree=self.data,
            tensor_degree=self.tensor,
            context_degree=self.context,
            expert_degree=self.expert,
            replicate_degree=self.copies,
            zero_stage=self.zero_stage if self.strategy.zero_stage is None else 0,
            offload_optimizer=self.setting.offload,
            sequence_parallel=self.tensor > 1 and self.setting.workload.trains,
            microbatches=self.runs if self.pipeline > 1 else 1,
            pipeline_degree=self.pipeline,
            pipeline_schedule="interleaved" if self.virtual > 1 else "1f1b",
            virtual_stages=self.virtual,
            engine=self.engine,
        )

    def whole(self, batch: int) -> Sharding:
        """Return a Sharding with ranks that run all layers of one whole sequence."""
        return _sharding(
            strategy=self.strategy.rank_rules or self.strategy.key,
            data_degree=batch,
            tensor_degree=self.tensor,
            expert_degree=self.expert,
            zero_stage=self.zero_stage if self.strategy.zero_stage is None else 0,
            sequence_parallel=self.tensor > 1,
            engine=self.engine,
        )


@lru_cache(maxsize=8192)
def _sharding(**fields: Any) -> Sharding:
    """A Sharding, checked once."""
    return Sharding(**fields)


def cluster_grids(search_context: SearchContext) -> list[Plan]:
    """Return the Plans over several nodes that no other such Plan beats."""
    if not search_context.asked.trains:
        return []
    pools = _pools(search_context)
    found, unfit = _fitting(_GridSearch(search_context), pools)
    if search_context.limits.offload:
        found += _fitting(_GridSearch(search_context, offload=True), unfit)[0]
    if not found:
        # No grid is sure to fit, so use the least possible need.
        found = _fitting(_GridSearch(replace(search_context, tight=True)), pools)[0]
    plans: list[Plan] = []
    for offloads in (False, True):
        alike = [one for one in found if one[1].setting.offload is offloads]
        shown = _front([(grid, pool) for _, grid, pool in alike])
        kept = {id(grid) for grid, _ in shown}
        plans += [
            search.plan(grid, pool) for search, grid, pool in alike if id(grid) in kept
        ]
    return plans


def _fitting(
    search: "_GridSearch", pools: Sequence[EqualNodes]
) -> tuple[list[tuple["_GridSearch", Grid, EqualNodes]], list[EqualNodes]]:
    """Return the best grid of each pool, and the pools without one.

    A pool is left out if a grid of another one is faster and cheaper than any of its
    own can be.
    """
    found: list[tuple[_GridSearch, Grid, EqualNodes]] = []
    unfit: list[EqualNodes] = []
    figures: list[tuple[float, float]] = []
    for pool in sorted(pools, key=search.least_seconds):
        least = _figures(search.least_seconds(pool), pool, pool.size)
        if any(time <= least[0] and cost <= least[1] for time, cost in figures):
            continue
        grid = search.best(pool)
        if grid is None:
            unfit.append(pool)
        else:
            found.append((search, grid, pool))
            figures.append(_figures(grid.time.total_seconds, pool, grid.size))
    return found, unfit


def _figures(seconds: float, pool: EqualNodes, size: int) -> tuple[float, float]:
    """Return time and cost of a step on the first Gpus of a pool.

    Short steps count as `SHORT_STEP_SECONDS`.
    """
    seconds = max(seconds, SHORT_STEP_SECONDS)
    weights = [offer.weight for offer in pool.offers[:size]]
    return seconds, seconds * (sum(weights) or len(weights))


def _front(found: Sequence[tuple[Grid, EqualNodes]]) -> list[tuple[Grid, EqualNodes]]:
    """Return the grids that no other one beats in time and cost."""

    def figures(one: tuple[Grid, EqualNodes]) -> tuple[float, float]:
        return _figures(one[0].time.total_seconds, one[1], one[0].size)

    kept: list[tuple[Grid, EqualNodes]] = []
    costs: list[float] = []
    for one in sorted(found, key=lambda one: (*figures(one), one[0].size)):
        cost = figures(one)[1]
        if all(cost < other for other in costs):
            kept.append(one)
            costs.append(cost)
    return kept


def _node_counts(nodes: int, most: int, *, alike: bool) -> list[int]:
    """Return numbers of nodes to try: powers of two, and all; of unlike nodes half and
    all.
    """
    most = min(nodes, most)
    if most < 2:
        return []
    if not alike:
        return sorted({max(2, most // 2), most})
    return sorted({2**power for power in range(1, most.bit_length())} | {most})


def _pools(search_context: SearchContext) -> list[EqualNodes]:
    """Return the pools to search.

    They are each kind of Gpu alone, every two kinds together, and all of them, each
    with the tried numbers of nodes.
    """
    by_node: dict[tuple[float, int, str, str], list[GpuOffer]] = {}
    for offer in search_context.offers:
        pace = offer.peak_flops * offer.share_ratio
        room = offer.free_bytes // ROOM_CLASS_BYTES
        key = (pace, room, offer.gpu_class, offer.node)
        by_node.setdefault(key, []).append(offer)
    kinds: dict[tuple[float, int, str], list[tuple[GpuOffer, ...]]] = {}
    for (pace, room, name, _), gpus in by_node.items():
        kinds.setdefault((pace, room, name), []).append(tuple(gpus))
    ranked = sorted(
        kinds,
        key=lambda kind: (-kind[0] * sum(map(len, kinds[kind])), -kind[1], kind[2]),
    )[:MOST_KINDS]
    sets: list[tuple[tuple[float, int, str], ...]] = [(kind,) for kind in ranked]
    sets += combinations(ranked, 2)
    if len(ranked) > 2:
        sets.append(tuple(ranked))
    made: list[EqualNodes] = []
    for chosen in sets:
        groups = [
            group for kind in sorted(chosen, reverse=True) for group in kinds[kind]
        ]
        pool = _pool(groups)
        if pool is None:
            continue
        most = search_context.most_gpus // pool.each
        counts = _node_counts(len(pool.nodes), most, alike=len(chosen) == 1)
        made += [pool.first(count) for count in counts]
    return made


def _pool(groups: Sequence[tuple[GpuOffer, ...]]) -> EqualNodes | None:
    """Return the same number of Gpus of each node, chosen so that most Gpus are used.

    Only one group of a node is used.
    """
    by_node: dict[str, tuple[GpuOffer, ...]] = {}
    for group in groups:
        known = by_node.get(group[0].node, ())
        if len(group) > len(known):
            by_node[group[0].node] = group
    sizes = sorted({len(group) for group in by_node.values()})
    if len(by_node) < 2:
        return None
    each = max(
        sizes, key=lambda size: size * sum(len(g) >= size for g in by_node.values())
    )
    nodes = tuple(group[:each] for group in by_node.values() if len(group) >= each)
    if len(nodes) < 2:
        return None
    links = [slowest_link(node) for node in nodes]
    return EqualNodes(
        nodes=nodes,
        each=each,
        fast=min(links, key=lambda link: link.bytes_per_second),
        joined=each > 1 and all(joined_by_fast_links(node) for node in nodes),
        network=min(offer.network_bytes_per_second for node in nodes for offer in node),
        memory=min(memory_bandwidth(offer) for node in nodes for offer in node),
    )


_NO_TIME = StepTime(0.0)
NEARLY = 0.99
"""Activations grow with the microbatch, but for rounding."""


class _UnitWork:
    """The work of one sequence on a rank that runs all layers, and what it keeps."""

    def __init__(
        self,
        context: SearchContext,
        setting: Setting,
        whole: Sharding,
        costs: Sequence[LayerCost],
    ) -> None:
        workload = setting.workload
        self.work = context.work(in_runs(setting, 1), whole)
        self.flops = tuple(layer_flops(cost, workload) for cost in costs)
        self.total_flops = sum(self.flops)
        self.trained = tuple(cost.trained_elements > 0 for cost in costs)
        self.of_microbatches: dict[tuple[float, int], Work] = {}
        """By sequences of a microbatch, and context ranks."""
        inner = [cost for cost in costs if cost.kind not in ("embedding", "head")]
        alike = min(inner, key=lambda cost: cost.kept_bytes, default=costs[0])
        self.kept = float(alike.kept_bytes) if inner else 0.0
        """Bytes that the block with the fewest keeps until its backward."""
        tokens = context.tokens(in_runs(setting, 1), whole)
        self.passes = {
            loop: memory_passes(
                costs,
                context.spec,
                workload.replace(optimizer_loop=loop),
                tokens=tokens,
                fetched=whole.stage == 3,
                tensor_degree=whole.tensor_degree,
            )
            for loop in {workload.optimizer_loop, context.asked.optimizer_loop}
        }
        """Passes over memory for one sequence, by the loop of the optimizer."""
        self.states = (
            sum(cost.parameter_bytes for cost in costs),
            sum(cost.gradient_bytes for cost in costs),
            sum(cost.optimizer_bytes for cost in costs),
        )
        elements = sum(cost.elements for cost in costs) or 1
        smallest = min((cost.elements for cost in inner), default=0)
        self.block_share = smallest / elements
        """The smallest block's part of the states."""
        self.blocks = [
            0,
            *accumulate(cost.kind not in ("embedding", "head") for cost in costs),
        ]
        """Number of blocks before each layer, and of all."""


def _with_selective(
    settings: Sequence[Setting], limits: PlanLimits
) -> Iterator[Setting]:
    """Yield settings, and for each one that keeps attention's scores the one that
    computes them again (arXiv:2205.05198, section 5). Flash attention keeps none.
    """
    for one in settings:
        yield one
        asked = one.workload
        if (
            limits.checkpointing
            and asked.checkpointing == "none"
            and asked.attention in ("eager", "math")
        ):
            yield replace(one, workload=asked.replace(checkpointing="selective"))


def _in_flight(grid: Grid, stage: int) -> int:
    """Return the microbatches whose activations a stage keeps, each of one piece."""
    if grid.virtual > 1:
        return kept_pieces(stage, grid.pipeline, grid.virtual, grid.runs)
    return min(grid.runs, grid.pipeline - stage)


def _busiest(flops: Sequence[float], bounds: Sequence[int], stages: int) -> float:
    """Return the part of the operations of the rank with the most, over its pieces."""
    pieces = [sum(flops[first:last]) for first, last in pairwise(bounds)]
    return max(sum(pieces[rank::stages]) for rank in range(stages)) / (
        sum(flops) or 1.0
    )


class _GridSearch:
    """The shared state of the grids of all pools in one search."""

    def __init__(self, search_context: SearchContext, *, offload: bool = False) -> None:
        """Begin a search. With `offload`, only grids with FSDP's offloading."""
        self.search_context = search_context
        self.shape = search_context.spec.shape
        freedom = replace(
            search_context.freedom(parameters=True),
            limits=replace(
                search_context.limits,
                small_optimizer=False,
                quantization=False,
                offload=offload,
            ),
        )
        # Nodes share what is offloaded, so each number of nodes is checked by itself.
        freedom = replace(freedom, host_fits=lambda _: True)
        self.settings = [
            one
            for one in stages(search_context.asked, freedom)
            if one.offload or not offload
        ]
        if offload:
            self.settings += [
                replace(one, workload=one.workload.replace(offload="nvme"))
                for one in self.settings
            ]
        # A fused optimizer needs less memory and time. `best` returns to the requested
        # loop if there is room for it.
        known = {one.workload for one in self.settings}
        self.settings = [
            one
            for one in self.settings
            if one.workload.optimizer_loop == "fused"
            or one.workload.replace(optimizer_loop="fused") not in known
        ]
        self.by_megatron = search_context.asked.precision == "megatron_bf16"
        if self.by_megatron:
            self.settings = list(_with_selective(self.settings, search_context.limits))
        self.rooms: dict[object, bool] = {}
        self.cuts: dict[tuple[int, int, int], tuple[float, tuple[int, ...]]] = {}
        self.works: dict[object, _UnitWork] = {}
        self.states: dict[object, int] = {}
        self.least_flops: float | None = None
        self.routers = sum(
            any(part.component == "router" for part in layer.parts)
            for layer in search_context.spec.layers
        ) or len(search_context.spec.layers)
        only = search_context.limits.strategies
        self.allowed = {
            one.key
            for one in ((FSDP, HSDP) if offload else GRIDS)
            if not only or one.key in only
        }

    def best(self, pool: EqualNodes) -> Grid | None:
        """Return the grid with the shortest step that fits, or None."""
        if not self.settings:
            return None
        speed = self._speed(pool)
        grids = sorted(self._grids(pool, speed), key=lambda grid: grid.order)
        room = pool.free_bytes
        checks = 0
        for grid in grids:
            if self._least_bytes(grid) > room:
                continue
            checks += 1
            if checks > MOST_CHECKS:
                return None
            if self._fits(grid, room):
                return self._with_asked_loop(grid, pool)
        return None

    def _with_asked_loop(self, grid: Grid, pool: EqualNodes) -> Grid:
        """Return the grid with the requested optimizer loop, if it fits too."""
        setting = grid.setting
        loop = self.search_context.asked.optimizer_loop
        if setting.workload.optimizer_loop == loop:
            return grid
        plain = replace(setting, workload=setting.workload.replace(optimizer_loop=loop))
        milder = replace(grid, setting=plain)
        if not self._fits(milder, pool.free_bytes):
            return grid
        milder.time = self._time(pool, self._speed(pool), milder)
        return milder

    def _speed(self, pool: EqualNodes) -> float:
        """Return the operations per second of the slowest Gpu."""
        setting = self.settings[0]
        kinds = {
            (one.name, one.peak_flops, one.share_ratio): one for one in pool.offers
        }
        return self.search_context.speed(tuple(kinds.values()), setting)

    def least_seconds(self, pool: EqualNodes) -> float:
        """Return a lower bound of the step: all Gpus compute all the time, without
        recomputation and as in large matrix products.
        """
        if not self.settings:
            return 0.0
        if self.least_flops is None:
            context = self.search_context
            setting = in_runs(self.settings[0], 1)
            plain = replace(
                setting, workload=setting.workload.replace(checkpointing="none")
            )
            whole = _sharding(strategy=DDP.key, data_degree=context.asked.batch)
            costs = context.costs(plain, whole)
            each = sum(layer_flops(cost, plain.workload) for cost in costs)
            self.least_flops = context.asked.batch * each
        return self.least_flops / (pool.size * self._speed(pool))

    def _least_bytes(self, grid: Grid) -> float:
        """Return a quick lower bound of the need of a rank.

        It is the larger one of the average states, and of the states and kept
        activations of the first stage's blocks.
        """
        setting = grid.setting
        states = self._state_bytes(grid)
        least = states / grid.pipeline
        if setting.offload or grid.context > 1:
            return least
        unit = self._unit(grid)
        _, bounds = self._widest(grid)
        starts = bounds[:: grid.pipeline][: grid.virtual]
        ends = bounds[1 :: grid.pipeline][: grid.virtual]
        blocks = sum(
            unit.blocks[last] - unit.blocks[first]
            for first, last in zip(starts, ends, strict=True)
        )
        alive = _in_flight(grid, 0) / grid.virtual * self._micro(grid) * unit.kept
        return max(least, blocks * (states * unit.block_share + NEARLY * alive))

    def _state_bytes(self, grid: Grid) -> int:
        """Return the likely need of a rank that holds only the states of all layers."""
        key = (
            grid.strategy.key,
            grid.tensor,
            grid.context,
            grid.data,
            grid.expert,
            grid.zero_stage,
            grid.copies,
            grid.setting.workload.offload,
            grid.setting.workload.offload_parameters,
        )
        known = self.states.get(key)
        if known is None:
            unit = self._unit(grid)
            known = self.states[key] = self.search_context.sharded_bytes(
                unit.states, grid.setting, grid.sharding()
            )
        return known

    def _may_fit(self, grid: Grid, pool: EqualNodes, room_bytes: int) -> bool:
        """Return whether the states alone leave it a chance, on the Gpus and outside
        of them.
        """
        if self._state_bytes(grid) / grid.pipeline > room_bytes:
            return False
        return not grid.setting.offload or self._host_fits(grid, pool, grid.sharding())

    def _micro(self, grid: Grid) -> float:
        """Return the sequences of one microbatch."""
        return self.search_context.asked.batch / (grid.data * grid.runs)

    def _host_fits(self, grid: Grid, pool: EqualNodes, sharding: Sharding) -> bool:
        """Return whether each node has room for what its ranks keep off the Gpus."""
        held, computed = rank_parts(self.search_context.spec, sharding)
        ranks = min(pool.each, grid.size)
        key = (id(pool), grid.setting.workload, held * ranks)
        if key not in self.rooms:
            room = host_room(
                pool.offers, self.search_context.limits.offload_memory_bytes
            )
            state = self.search_context.offloaded(grid.setting.workload)
            self.rooms[key] = room.fits(state.need(held * ranks, computed * ranks))
        return self.rooms[key]

    def _grids(self, pool: EqualNodes, speed: float) -> Iterator[Grid]:
        search_context, batch = self.search_context, self.search_context.asked.batch
        length = search_context.asked.sequence_length
        layers = len(search_context.spec.layers)
        wide = [1]
        if pool.joined:
            wide += [
                t
                for t in tensor_degrees(search_context.spec, pool.each)
                if not pool.each % t
            ]
        for tensor in wide:
            for context in CONTEXT_DEGREES:
                if context > 1 and (
                    self.shape is None
                    or self.shape.state_dim
                    or search_context.fixed_length
                    or length // context < LEAST_CONTEXT_TOKENS
                ):
                    continue
                cells = pool.size // (tensor * context)
                for pipeline in divisors(cells):
                    if pipeline > min(layers, MOST_STAGES):
                        break
                    data = largest_divisor(batch, cells // pipeline)
                    yield from self._with_degrees(
                        pool, speed, tensor, context, pipeline, data
                    )

    def _with_degrees(
        self,
        pool: EqualNodes,
        speed: float,
        tensor: int,
        context: int,
        pipeline: int,
        data: int,
    ) -> Iterator[Grid]:
        batch, room = self.search_context.asked.batch, pool.free_bytes
        plain = tensor == context == pipeline == 1
        if not plain and data * context * tensor * pipeline < 2:
            return
        cells = max(1, pool.each // (tensor * context))
        kinds: list[tuple[Strategy, int, int]] = []
        if plain:
            kinds = [(DDP, 0, 1), (ZERO1, 1, 1), (ZERO2, 2, 1), (FSDP, 3, 1)]
            if data > cells > 1 and not data % cells:
                kinds.append((HSDP, 3, data // cells))
        else:
            several = CONTEXT if context > 1 else HYBRID
            kinds = [(several, 1 if self._stateful and data * context > 1 else 0, 1)]
            if pipeline == 1 and data > 1:
                kinds.append((several, 3, 1))
        experts = self.shape.experts if self.shape else 0
        spread = [1]
        if experts:
            spread += [e for e in divisors(data) if e > 1 and not experts % e]
        for strategy, zero, copies in kinds:
            for expert in spread:
                one = EXPERT if expert > 1 else strategy
                if one.key not in self.allowed or (expert > 1 and zero > 1):
                    continue
                if expert > 1:
                    zero = 1 if self._stateful else 0
                if one.axis.value == "several" and (
                    sum(n > 1 for n in (tensor, context, pipeline, data)) < 2
                    and expert == 1
                ):
                    continue
                engine: Engine = "megatron" if self.by_megatron and zero < 2 else "auto"

                def grid(setting: Setting, runs: int, virtual: int = 1) -> Grid:
                    return Grid(
                        strategy=one,  # noqa: B023
                        setting=setting,
                        tensor=tensor,
                        context=context,
                        pipeline=pipeline,
                        data=data,
                        expert=expert,  # noqa: B023
                        zero_stage=zero,  # noqa: B023
                        copies=copies,  # noqa: B023
                        runs=runs,
                        time=_NO_TIME,
                        virtual=virtual,
                        engine=engine,  # noqa: B023
                    )

                settings = [
                    setting
                    for setting in self.settings
                    if self._may_fit(grid(setting, batch // data), pool, room)
                ]
                if not settings:
                    continue
                for micro, virtual in product(MICROBATCHES, self._virtual(pipeline)):
                    runs = batch // data // micro
                    if runs * micro * data != batch or runs % (
                        pipeline if virtual > 1 else 1
                    ):
                        continue
                    yield from self._timed(pool, speed, settings, grid, runs, virtual)

    def _timed(
        self,
        pool: EqualNodes,
        speed: float,
        settings: Sequence[Setting],
        grid: Callable[[Setting, int, int], Grid],
        runs: int,
        virtual: int,
    ) -> Iterator[Grid]:
        """Yield a grid for each setting, with its time."""
        for stage in settings:
            made = grid(stage, runs, virtual)
            made.setting = in_runs(stage, 1 if made.pipeline > 1 else runs)
            made.time = self._time(pool, speed, made)
            yield made

    def _virtual(self, pipeline: int) -> list[int]:
        """Return the numbers of pieces per rank for a number of stages."""
        layers = len(self.search_context.spec.layers)
        return [
            n for n in VIRTUAL if n == 1 or (pipeline > 1 and n * pipeline <= layers)
        ]

    @property
    def _stateful(self) -> bool:
        return self.search_context.asked.optimizer != "sgd"

    def _time(self, pool: EqualNodes, speed: float, grid: Grid) -> StepTime:
        """Return the seconds of one step; see docs/design/placement.md#many-nodes."""
        workload = grid.setting.workload
        work = self._work(grid)
        widest, _ = self._widest(grid)
        share, runs = widest, grid.runs
        flops = work.flops / grid.context
        unit = self._unit(grid)
        passes = unit.passes[workload.optimizer_loop]
        each, once = passes.of_rank(
            runs,
            grid.zero_stage,
            grid.data * grid.context // grid.copies,
            self._micro(grid) / grid.context,
        )
        whole = max(flops / speed + each / pool.memory, passes.start_seconds)
        busy = share * (runs * whole + once / pool.memory)
        bubble = (1 - share) * whole / grid.virtual
        sent = 0.0
        if grid.tensor > 1:
            link = pool.fast
            sent += (
                runs
                * share
                * tensor_seconds(work, workload, degree=grid.tensor, link=link)
                / grid.context
            )
        network = SlowestLink(NETWORK, pool.network)
        cells = max(1, pool.each // grid.tensor)
        if grid.pipeline > 1:
            border = self._tokens(grid) * self._width * cells / grid.context
            trips = 2 * grid.virtual * (runs + grid.pipeline - 1)
            sent += trips * border / pool.network
        sent += self._averaging(pool, grid, work, share, busy, network)
        if grid.expert > 1:
            sent += self._experts(pool, grid, share)
        if grid.context > 1:
            sent += self._context(pool, grid, busy)
        if grid.setting.offload:
            sent += host_seconds(
                work, workload, share_ratio=1 / grid.sharding().shard_degree
            )
        return StepTime(busy, sent, bubble)

    def _averaging(
        self,
        pool: EqualNodes,
        grid: Grid,
        work: Work,
        share: float,
        busy: float,
        network: SlowestLink,
    ) -> float:
        """Return the time for gradients between copies, and for the weights that FSDP
        gathers.
        """
        copies = grid.data * grid.context
        if copies < 2:
            return 0.0
        nodes = max(1, -(-copies * grid.tensor // pool.each))
        gradient = share * work.gradient_bytes
        weights = share * work.weight_bytes
        within = all_reduce_bytes(gradient, copies)
        outside = 2 * gradient * grid.tensor * (nodes - 1) / nodes
        workload, gathered = grid.setting.workload, 0.0
        if grid.zero_stage in (1, 2) and grid.engine != "megatron":
            # Half of it is weights, gathered after the step, when nothing hides it.
            within, outside = within / 2, outside / 2
            held = share * work.stepped * widths(workload).parameter
            gathered = held * (copies - 1) / copies / pool.fast.bytes_per_second
            spread = held * grid.tensor * (nodes - 1) / nodes
            gathered = max(gathered, spread / pool.network)
        if grid.zero_stage == 3:
            gathers = 2 * grid.runs * weights
            within += gathers - gradient
            if grid.copies == 1:
                outside = (gathers + gradient) * grid.tensor * (nodes - 1) / nodes
        spent = exposed_seconds(within, pool.fast, busy)
        if nodes > 1:
            spent = max(spent, exposed_seconds(outside, network, busy))
        return spent + gathered

    def _experts(self, pool: EqualNodes, grid: Grid, share: float) -> float:
        """Return the time for tokens to their experts and back: all-to-all without
        overlap.
        """
        assert self.shape is not None
        moved = (
            EXPERT_TRIPS
            * self.routers
            * share
            * grid.runs
            * self._tokens(grid)
            / (grid.tensor * grid.context)
            * self.shape.experts_run
            * self._width
            * (grid.expert - 1)
            / grid.expert
        )
        inside = grid.expert * grid.tensor * grid.context <= pool.each
        rate = pool.fast.bytes_per_second if inside else pool.network / pool.each
        return moved / rate

    def _context(self, pool: EqualNodes, grid: Grid, busy: float) -> float:
        """Return the time for keys and values around the context ranks
        (arXiv:2310.01889).
        """
        assert self.shape is not None
        row = 2 * self.shape.kv_heads * self.shape.head_dim * 2 / grid.tensor
        tokens = self._tokens(grid) * (grid.context - 1) / grid.context
        layers = len(self.search_context.spec.layers) / grid.pipeline
        moved = 3 * layers * grid.runs * tokens * row
        if grid.tensor * grid.context <= pool.each:
            return exposed_seconds(moved, pool.fast, busy)
        shared = SlowestLink(NETWORK, pool.network / pool.each)
        return exposed_seconds(moved, shared, busy)

    def _tokens(self, grid: Grid) -> float:
        """Return the tokens of one microbatch, before context ranks share them."""
        batch = self.search_context.asked.batch
        length = (
            1
            if self.search_context.fixed_length
            else self.search_context.asked.sequence_length
        )
        if self.shape is not None and self.shape.image_tokens:
            length = self.shape.image_tokens
        return batch / (grid.data * grid.runs) * length

    @property
    def _width(self) -> float:
        """Return the bytes of one token between blocks, in 16 bits."""
        return 2.0 * (self.shape.hidden if self.shape else 4096)

    def _widest(self, grid: Grid) -> tuple[float, tuple[int, ...]]:
        """Return the busiest rank's part of the operations, and the first layers of
        all pieces and the end.
        """
        flops = self._unit(grid).flops
        # `works` keeps them, so ids are not reused.
        key = (id(flops), grid.pipeline, grid.virtual)
        if key not in self.cuts:
            part, even = even_stages(flops, grid.pipeline * grid.virtual)
            bounds = with_trained_pieces(even, self._unit(grid).trained)
            if grid.virtual > 1 or bounds != even:
                part = _busiest(flops, bounds, grid.pipeline)
            self.cuts[key] = part, bounds
        return self.cuts[key]

    def _unit(self, grid: Grid) -> "_UnitWork":
        """Return the work of one sequence on a rank with all layers."""
        setting = grid.setting
        key = (
            grid.tensor,
            grid.expert,
            grid.zero_stage == 3,
            grid.engine,
            setting.workload.checkpointing,
        )
        known = self.works.get(key)
        if known is None:
            whole = grid.whole(self.search_context.asked.batch)
            costs = self.search_context.costs(in_runs(setting, 1), whole)
            known = self.works[key] = _UnitWork(
                self.search_context, setting, whole, costs
            )
        return known

    def _work(self, grid: Grid) -> Work:
        """Return the work of one microbatch on a rank with all layers."""
        micro, unit = self._micro(grid), self._unit(grid)
        known = unit.of_microbatches.get((micro, grid.context))
        if known is None:
            tokens = self._tokens(grid) / grid.context
            sizes = self.search_context.sizes
            ratio = efficiency_ratio(tokens, sizes, grid.tensor, grid.expert)
            work = unit.work
            known = unit.of_microbatches[micro, grid.context] = replace(
                work,
                flops=micro * unit.total_flops / ratio,
                stream_bytes=micro * work.stream_bytes,
                logits_bytes=micro * work.logits_bytes,
            )
        return known

    def _stage(self, grid: Grid, stage: int) -> Sharding:
        """Return the layers of one stage's ranks."""
        base = grid.sharding()
        if grid.pipeline == 1:
            return replace(base, last_layer=len(self.search_context.spec.layers))
        _, bounds = self._widest(grid)
        chunks = tuple(list(pairwise(bounds))[stage :: grid.pipeline])
        return replace(
            base,
            first_layer=chunks[0][0],
            last_layer=chunks[-1][1],
            chunks=chunks if grid.virtual > 1 else (),
            in_flight=_in_flight(grid, stage),
        )

    def _fits(self, grid: Grid, room_bytes: int) -> bool:
        """Return whether all stages' ranks have room.

        The first stages, the last one and a middle one are usually the fullest, so they
        are counted first.
        """
        count = grid.pipeline
        likely = [one for one in (0, count - 1, 1, count // 2) if one < count]
        return all(
            self.search_context.need_bytes(grid.setting, self._stage(grid, stage))
            <= room_bytes
            for stage in dict.fromkeys((*likely, *range(count)))
        )

    def plan(self, grid: Grid, pool: EqualNodes) -> Plan:
        """Return a grid as a Plan, its ranks stage by stage, copy by copy."""
        made = [self._stage(grid, stage) for stage in range(grid.pipeline)]
        offers = pool.offers[: grid.size]
        each = grid.size // len(made)
        busy = grid.time.compute_seconds
        seats = [
            RankPlacement(
                offer,
                made[rank // each],
                rank // each,
                rank % each // grid.tensor,
                rank % grid.tensor,
                busy,
            )
            for rank, offer in enumerate(offers)
        ]
        workload = grid.setting.workload
        _, bounds = self._widest(grid)
        launch: dict[str, object] = {
            "microbatch": workload.batch // (grid.data * grid.runs)
        }
        if grid.pipeline > 1:
            launch["bounds"] = list(bounds)
        elif grid.strategy.has_stages:
            launch["bounds"] = [0, len(self.search_context.spec.layers)]
        if grid.strategy.keeps_model_whole:
            launch["gradient_as_bucket_view"] = True
        if grid.strategy.engine == "deepspeed":
            costs = self.search_context.costs(grid.setting, made[0])
            launch["reduce_bucket_size"] = max(cost.elements for cost in costs)
        return self.search_context.plan(
            grid.strategy.key,
            grid.setting,
            seats,
            grid.time,
            why=self._why(grid, pool),
            launch=launch,
            title=self._title(grid),
        )

    def _title(self, grid: Grid) -> str:
        if grid.strategy.keeps_model_whole:
            return ""
        parts = [
            f"tensor {grid.tensor}" if grid.tensor > 1 else "",
            f"context {grid.context}" if grid.context > 1 else "",
            f"pipeline {grid.pipeline}" if grid.pipeline > 1 else "",
            f"data {grid.data}" if grid.data > 1 else "",
            f"expert {grid.expert}" if grid.expert > 1 else "",
        ]
        told = " × ".join(filter(None, parts))
        return sentence("Hybrid: {told}", told=told)

    def _why(self, grid: Grid, pool: EqualNodes) -> list[str]:
        """Return the arithmetic of the degrees as text."""
        time = grid.time
        why = [grid.strategy.why] if grid.strategy.why else []
        why.append(
            sentence(
                "Tensor {tensor} × context {context} × pipeline {pipeline} × data "
                "{data} = {size} GPUs of {nodes}, {each} on each.",
                tensor=grid.tensor,
                context=grid.context,
                pipeline=grid.pipeline,
                data=grid.data,
                size=f"{grid.size:,}",
                nodes=counted("{n} node", "{n} nodes", len(pool.nodes)),
                each=pool.each,
            )
        )
        state = (
            self.search_context.state_bytes(grid.setting, grid.sharding())
            / grid.pipeline
        )
        why.append(
            sentence(
                "{parameters} parameters over {cut} GPUs, with gradients and optimizer "
                "state: about {state} a GPU.",
                parameters=f"{self.search_context.spec.parameter_count:,}",
                cut=grid.tensor * grid.pipeline,
                state=gib(state),
            )
        )
        why.append(
            sentence(
                "The batch of {batch} is {data} × {runs} microbatches of {micro}.",
                batch=grid.setting.workload.batch,
                data=grid.data,
                runs=grid.runs,
                micro=grid.setting.workload.batch // (grid.data * grid.runs),
            )
        )
        if grid.engine == "megatron":
            why.append(
                sentence(
                    "Memory is counted as Megatron-LM uses it. No recipe of the portal "
                    "runs Megatron-LM."
                )
            )
        if grid.tensor > 1:
            why.append(
                sentence(
                    "Tensor parallelism stays inside a node, because it sends in every "
                    "layer."
                )
            )
        if grid.pipeline > 1:
            why.append(
                sentence(
                    "The pipeline idles for ({pipeline} − 1) of {slots} slots: {share} "
                    "% of the step.",
                    pipeline=grid.pipeline,
                    slots=grid.virtual * grid.runs + grid.pipeline - 1,
                    share=f"{100 * time.bubble_seconds / time.total_seconds:.1f}",
                )
            )
        if grid.virtual > 1:
            why.append(
                sentence(
                    "The batch runs through in {pieces}; the pipeline fills {virtual} "
                    "times as fast as with one piece a GPU.",
                    pieces=counted("{n} piece", "{n} pieces", grid.runs),
                    virtual=grid.virtual,
                )
            )
        return why


def largest_divisor(number: int, most: int) -> int:
    """Return the largest divisor of a number that is at most `most`.

    >>> largest_divisor(12, 5), largest_divisor(7, 4)
    (4, 1)
    """
    return max(n for n in divisors(number) if n <= most)


@lru_cache(maxsize=1024)
def even_stages(flops: tuple[float, ...], count: int) -> tuple[float, tuple[int, ...]]:
    """Cut layers into stages of about equal work, none of them empty.

    Returns:
        The largest stage's part of all operations, and the first layer of each stage
        and the end.

    >>> even_stages((1.0, 1.0, 1.0, 1.0), 2)
    (0.5, (0, 2, 4))
    """
    sums = [0.0, *accumulate(flops)]
    total = sums[-1] or 1.0
    bounds = [0]
    for stage in range(1, count):
        left = count - stage + 1
        aim = sums[bounds[-1]] + (total - sums[bounds[-1]]) / left
        low, high = bounds[-1] + 1, len(flops) - (count - stage)
        nearest = min(range(low, high + 1), key=lambda cut: abs(sums[cut] - aim))
        bounds.append(nearest)
    bounds.append(len(flops))
    widest = max(sums[last] - sums[first] for first, last in pairwise(bounds))
    return widest / total, tuple(bounds)
