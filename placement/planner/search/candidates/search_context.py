"""One search among some Gpus: cached needs of ranks, and the construction of Plans."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from placement.planner.memory.estimate import (
    CONTEXT_BYTES,
    Estimate,
    context_of,
    estimate_from_costs,
    interval,
    rank_costs,
    tape_workload,
)
from placement.planner.memory.layer_costs import LayerCost, Replays
from placement.planner.memory.parameter_states import widths
from placement.planner.memory.step_phases import rank_phases, stage_layers
from placement.planner.model.sharding import ONE_RANK, Sharding
from placement.planner.model.spec import ModelSpec
from placement.planner.search.candidates.explanation import (
    bound_by,
    decode_words,
    launch_of,
    learned_notes,
    notes_of,
    pass_notes,
)
from placement.planner.search.card_support import batch_norm_notes
from placement.planner.search.decode_time import (
    DecodeTime,
    is_generated,
    rank_seconds,
)
from placement.planner.search.host_room import (
    HostNeed,
    HostRoom,
    OffloadedState,
    fullest_node,
    host_notes,
    host_room,
    needs_by_node,
    offloaded_state,
)
from placement.planner.search.link_bandwidth import (
    SlowestLink,
    fast_groups,
    neighbourhoods,
    slowest_link,
)
from placement.planner.search.memory_passes import (
    ACCESSES,
    FORWARD_BLOCK_SECONDS,
    MemoryPasses,
    RankTime,
    memory_bandwidth,
    memory_passes,
    rank_time,
)
from placement.planner.search.memory_savings import (
    AllowedRemedies,
    PlanLimits,
    Setting,
    Weights,
    explain,
)
from placement.planner.search.sensible_step import why_absurd
from placement.planner.search.step_time import (
    ProductSizes,
    StepTime,
    Work,
    efficiency_ratio,
    flops_per_second,
    product_sizes,
    work_of,
)
from placement.planner.values.calibration import UNCORRECTED, Corrections
from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.objective import Objective
from placement.planner.values.plan import Plan, Shard
from placement.planner.values.strategies import DDP, TITLES
from placement.planner.values.workload import Workload
from telemetry.protocol.gpu_cards import card_of
from telemetry.protocol.sentences import sentence

CLASS_ROUNDING_BYTES = 64 * 2**20
"""Free bytes are rounded down to this, so that equally idle Gpus form one class."""
WORTH_RATIO = 0.8
"""A second Plan of a strategy is shown if it needs at most this part of the time."""
Timed = TypeVar("Timed")
GREEDY_OBJECTIVES = ("fastest", "cheapest")
"""With these objectives it is shown for any gain in speed."""
_KEYED = tuple(
    name
    for name in Workload.__slots__
    if name not in ("batch", "accumulation", "optimizer_loop")
)
_REPLAYED = tuple(
    name
    for name in _KEYED
    if name not in ("offload", "offload_parameters", "optimizer")
)


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """The position of a rank in a Plan, and its share of the work."""

    offer: GpuOffer
    sharding: Sharding
    stage: int = 0
    replica: int = 0
    tensor_rank: int = 0
    busy_seconds: float = 0.0


@dataclass(slots=True)
class Caches:
    """Results that several searches for one request may share."""

    keys: dict[object, tuple[object, ...]] = field(default_factory=dict)
    costs: dict[object, tuple[LayerCost, ...]] = field(default_factory=dict)
    tapes: dict[object, Replays] = field(default_factory=dict)
    offloaded: dict[object, OffloadedState] = field(default_factory=dict)
    replays: dict[object, tuple[LayerCost, ...]] = field(default_factory=dict)
    works: dict[object, Work] = field(default_factory=dict)
    passes: dict[object, MemoryPasses] = field(default_factory=dict)
    needs: dict[object, tuple[int, int]] = field(default_factory=dict)
    states: dict[object, tuple[int, int, int]] = field(default_factory=dict)
    layers: dict[object, Any] = field(default_factory=dict)
    specs: dict[Weights, ModelSpec] = field(default_factory=dict)
    sizes: ProductSizes | None = None


@dataclass(slots=True)
class SearchContext:
    """The request, the Gpus to choose from, and the results computed so far."""

    spec: ModelSpec
    asked: Workload
    offers: tuple[GpuOffer, ...]
    limits: PlanLimits
    quantize: Callable[[ModelSpec, Weights], ModelSpec] | None = None
    """How weights are stored in fewer bits; None: impossible for this model."""
    tight: bool = False
    """Plan by the least possible need instead of the likely one."""
    objective: Objective | None = None
    learned: Corrections = UNCORRECTED
    """The site's measured error, by which need and time are corrected."""
    caches: Caches = field(default_factory=Caches)
    links: dict[tuple[str, ...], SlowestLink] = field(default_factory=dict)
    _room: HostRoom | None = None
    _near: list[tuple[GpuOffer, ...]] | None = None
    _fast: list[tuple[GpuOffer, ...]] | None = None
    _context: tuple[tuple[GpuOffer, ...], int] | None = None

    @property
    def context_bytes(self) -> int:
        """Return the bytes of the largest CUDA context on the cards offered."""
        if self._context is None or self._context[0] is not self.offers:
            names = {offer.name for offer in self.offers}
            most = max((context_of(card_of(name)) for name in names), default=0)
            self._context = self.offers, max(CONTEXT_BYTES, most)
        return self._context[1]

    @property
    def most_gpus(self) -> int:
        """Return the number of Gpus that a Plan may use."""
        return min(len(self.offers), self.limits.max_gpus or len(self.offers))

    @property
    def greedy(self) -> bool:
        """Return whether the objective is the shortest step and not mild remedies."""
        return self.objective in GREEDY_OBJECTIVES

    @property
    def fixed_length(self) -> bool:
        """Return whether the model itself fixes the number of tokens (vision)."""
        shape = self.spec.shape
        return bool(self.spec.sample_tokens if shape is None else shape.image_tokens)

    def near(self) -> list[tuple[GpuOffer, ...]]:
        """Return sets of Gpus that are close to each other."""
        if self._near is None:
            self._near = neighbourhoods(self.offers)
        return self._near

    def fast(self) -> list[tuple[GpuOffer, ...]]:
        """Return sets of Gpus that NVLink joins."""
        if self._fast is None:
            self._fast = fast_groups(self.offers)
        return self._fast

    def link(self, chosen: Sequence[GpuOffer]) -> SlowestLink:
        """Return the slowest hop among some Gpus."""
        key = tuple(offer.uuid for offer in chosen)
        if key not in self.links:
            self.links[key] = slowest_link(chosen)
        return self.links[key]

    def freedom(self, *, parameters: bool = False, copies: int = 1) -> AllowedRemedies:
        """Return the remedies that a strategy may use. `copies`: whole optimizer
        states.
        """

        room = self._room
        if room is None:
            limit = self.limits.offload_memory_bytes
            room = self._room = host_room(self.offers, limit)

        def fits(workload: Workload) -> bool:
            return room.fits(self.offloaded(workload).need(copies, copies))

        return AllowedRemedies(
            limits=self.limits,
            quantizable=self.quantize is not None,
            host_fits=fits,
            parameters=parameters,
            chunks=self.spec.reads_in_chunks,
        )

    def offloaded(self, workload: Workload) -> OffloadedState:
        """Return what a workload keeps off the Gpus, for one copy of the model."""
        key = (
            workload.offload,
            workload.offload_parameters,
            workload.precision,
            workload.optimizer,
            workload.trains,
        )
        known = self.caches.offloaded.get(key)
        if known is None:
            known = offloaded_state(self.spec, workload)
            self.caches.offloaded[key] = known
        return known

    def spec_of(self, setting: Setting) -> ModelSpec:
        """Return the model in the form of a setting."""
        if setting.weights == "full" or self.quantize is None:
            return self.spec
        if setting.weights not in self.caches.specs:
            made = self.quantize(self.spec, setting.weights)
            self.caches.specs[setting.weights] = made
        return self.caches.specs[setting.weights]

    def costs(self, setting: Setting, sharding: Sharding) -> tuple[LayerCost, ...]:
        """Return layer costs, cached by the values on which they depend."""
        key = self.cost_key(setting, sharding)
        made = self.caches.costs.get(key)
        if made is None:
            replayed = self._replayed(setting, sharding)
            made = self.caches.replays.get(replayed)
            if made is None:
                _, *taped = replayed
                made = rank_costs(
                    self.spec_of(setting),
                    setting.workload,
                    sharding,
                    self.caches.tapes.setdefault(tuple(taped), {}),
                )
                self.caches.replays[replayed] = made
            self.caches.costs[key] = made
        return made

    def cost_key(self, setting: Setting, sharding: Sharding) -> tuple[object, ...]:
        """Return the values on which layer costs depend. A rank's layers are not among
        them.
        """
        degrees = (
            setting,
            sharding.strategy,
            sharding.data_degree,
            sharding.tensor_degree,
            sharding.microbatches,
            sharding.is_staged,
            sharding.zero_stage,
            sharding.sequence_parallel,
            sharding.expert_degree,
            sharding.context_degree,
            sharding.engine,
        )
        key = self.caches.keys.get(degrees)
        if key is None:
            key = self.caches.keys[degrees] = self._cost_relevant_fields(
                setting, sharding
            )
        return key

    def _cost_relevant_fields(
        self, setting: Setting, sharding: Sharding
    ) -> tuple[object, ...]:
        workload = setting.workload
        lowered = tape_workload(workload, sharding)
        return (
            lowered.microbatch(sharding.data_degree),
            lowered.accumulation > 1,
            workload.batch if not workload.trains else 0,
            setting.weights,
            sharding.tensor_degree,
            sharding.stage == 3,
            sharding.sequence_parallel,
            sharding.buffers_of,
            sharding.expert_degree,
            sharding.context_degree,
            *(getattr(workload, name) for name in _KEYED),
        )

    def _replayed(self, setting: Setting, sharding: Sharding) -> tuple[object, ...]:
        """Return what the costs of layers depend on: the optimizer, and what a replay
        of them depends on.

        Where state lies does not change the layers. Gathered weights change them under
        autocast only, and Megatron's buffers only with sequence parallelism.
        """
        workload = setting.workload
        lowered = tape_workload(workload, sharding)
        spread = sharding.sequence_parallel
        return (
            workload.optimizer,
            lowered.microbatch(sharding.data_degree),
            lowered.accumulation > 1,
            workload.batch if not workload.trains else 0,
            setting.weights,
            sharding.tensor_degree,
            sharding.stage == 3 and widths(workload).autocast,
            spread,
            spread and sharding.buffers_of == "megatron",
            sharding.expert_degree,
            sharding.expert_tensor_degree,
            sharding.context_degree,
            *(getattr(workload, name) for name in _REPLAYED),
        )

    def tokens(self, setting: Setting, sharding: Sharding) -> float:
        """Return the tokens of one microbatch.

        If prompts are read in pieces, every piece reads the weights. They are as many
        tokens as would read them that often for each token.
        """
        lowered = tape_workload(setting.workload, sharding)
        length = self.spec.sample_tokens or lowered.sequence_length
        if self.spec.shape is not None and self.spec.shape.image_tokens:
            length = self.spec.shape.image_tokens
        sequences = lowered.microbatch(sharding.data_degree)
        every = float(sequences * length)
        if not lowered.prefill_tokens or not self.spec.reads_in_chunks:
            return every
        piece = math.prod(lowered.prompt_piece(sequences, length))
        width = self._weight_ratio(setting, sharding)
        return 1 / (1 / every + width * (1 / piece - 1 / every))

    def _weight_ratio(self, setting: Setting, sharding: Sharding) -> float:
        """Return the size of the weights, over their size in the compute precision."""
        costs = self.costs(setting, sharding)
        full = widths(setting.workload).compute * sum(cost.elements for cost in costs)
        return sum(cost.gathered_bytes for cost in costs) / max(1.0, full)

    def work(
        self,
        setting: Setting,
        sharding: Sharding,
        first: int = 0,
        last: int | None = None,
    ) -> Work:
        """Return the work of layers [first, last) on one rank."""
        key = (self.cost_key(setting, sharding), first, last)
        if key not in self.caches.works:
            self.caches.works[key] = work_of(
                self.costs(setting, sharding)[first:last],
                setting.workload,
                tokens=self.tokens(setting, sharding),
                fetched=sharding.stage == 3,
                sizes=self.sizes,
                tensor_degree=sharding.tensor_degree,
                expert_degree=sharding.expert_degree,
            )
        return self.caches.works[key]

    def passes(
        self,
        setting: Setting,
        sharding: Sharding,
        first: int = 0,
        last: int | None = None,
    ) -> MemoryPasses:
        """Return the passes over memory of layers [first, last) on one rank."""
        loop = setting.workload.optimizer_loop
        key = (self.cost_key(setting, sharding), loop, first, last)
        known = self.caches.passes.get(key)
        if known is None:
            known = self.caches.passes[key] = memory_passes(
                self.costs(setting, sharding)[first:last],
                self.spec,
                setting.workload,
                tokens=self.tokens(setting, sharding),
                fetched=sharding.stage == 3,
                tensor_degree=sharding.tensor_degree,
            )
        return known

    def rank_time(
        self,
        setting: Setting,
        sharding: Sharding,
        chosen: Sequence[GpuOffer],
        first: int = 0,
        last: int | None = None,
    ) -> RankTime:
        """Return the time that the slowest of some Gpus computes layers [first,
        last).
        """
        flops = self.work(setting, sharding, first, last).flops
        return rank_time(
            flops / self.speed(chosen, setting),
            self.passes(setting, sharding, first, last),
            min(memory_bandwidth(one) for one in chosen),
            runs=max(sharding.microbatches, setting.workload.accumulation),
            sharding=sharding,
        )

    def speed(self, chosen: Sequence[GpuOffer], setting: Setting) -> float:
        """Return the operations per second of the slowest of some Gpus."""
        width, rows = self.sizes.width, 0.0
        if setting.workload.prefill_tokens:
            rows = self._weight_ratio(setting, ONE_RANK)
            rows /= setting.workload.prefill_tokens
        return min(
            flops_per_second(one, setting.workload, width, rows) for one in chosen
        )

    @property
    def sizes(self) -> ProductSizes:
        """Return the sizes of the model's products."""
        if self.caches.sizes is None:
            self.caches.sizes = product_sizes(self.spec)
        return self.caches.sizes

    def efficiency_ratio(self, setting: Setting, sharding: Sharding) -> float:
        """Return the part of a Gpu's rate that a rank's microbatch reaches."""
        tokens = self.tokens(setting, sharding)
        degrees = (sharding.tensor_degree, sharding.expert_degree)
        return efficiency_ratio(tokens, self.sizes, *degrees)

    def need_bytes(self, setting: Setting, sharding: Sharding) -> int:
        """Return the bytes that a Gpu must offer to a rank."""
        # The need of copies does not depend on their number, only on their microbatch.
        alike = sharding.strategy == DDP.key and sharding.bucket_view
        key = (
            self.cost_key(setting, sharding),
            setting.workload.optimizer_loop,
            (DDP.key, sharding.offload_optimizer) if alike else sharding,
            self.context_bytes,
        )
        known = self.caches.needs.get(key)
        if known is None:
            costs = self.costs(setting, sharding)
            peak = rank_phases(costs, setting.workload, sharding).peak_bytes
            low, likely, _ = interval(
                peak, setting.workload, context_bytes=self.context_bytes
            )
            known = self.caches.needs[key] = (low, likely)
        return known[0] if self.tight else self._corrected_bytes(sharding, *known)

    def learned_ratio(self, strategy: str) -> float:
        """Return the factor of likely needs on the class that needs most."""
        if not self.learned.by_kind:
            return 1.0
        return self.learned.most_memory(strategy, {o.gpu_class for o in self.offers})

    def _corrected_bytes(self, sharding: Sharding, low: int, likely: int) -> int:
        return max(low, int(likely * self.learned_ratio(sharding.strategy)))

    def state_bytes(self, setting: Setting, sharding: Sharding) -> int:
        """Return a quick lower bound of `need_bytes` of copies: only the states after
        sharding.
        """
        key = self.cost_key(setting, sharding)
        sums = self.caches.states.get(key)
        if sums is None:
            costs = self.costs(setting, sharding)
            sums = self.caches.states[key] = (
                sum(cost.parameter_bytes for cost in costs),
                sum(cost.gradient_bytes for cost in costs),
                sum(cost.optimizer_bytes for cost in costs),
            )
        return self.sharded_bytes(sums, setting, sharding)

    def sharded_bytes(
        self, sums: tuple[int, int, int], setting: Setting, sharding: Sharding
    ) -> int:
        """Return the likely need of a rank that has only its part of some states.

        `sums`: bytes of weights, gradients and optimizer state before sharding.
        """
        workload, stage = setting.workload, sharding.stage
        parts = [part / sharding.shard_degree for part in sums]
        parameters = parts[0] if stage == 3 else sums[0]
        gradients = parts[1] if stage >= 2 else sums[1]
        optimizer = parts[2] if stage else sums[2]
        if workload.offload != "none":
            gradients = optimizer = 0.0
        if workload.offload_parameters:
            parameters = 0.0
        states = parameters + gradients + optimizer
        low, likely, _ = interval(states, workload, context_bytes=self.context_bytes)
        return low if self.tight else self._corrected_bytes(sharding, low, likely)

    def estimate(
        self, setting: Setting, sharding: Sharding, context_bytes: int
    ) -> Estimate:
        """Return the whole Estimate of a rank. `context_bytes`: on its card."""
        return estimate_from_costs(
            self.spec_of(setting),
            setting.workload,
            sharding,
            self.costs(setting, sharding),
            context_bytes,
        )

    def shard(
        self, rank: int, seat: RankPlacement, made: Estimate, slower: float
    ) -> Shard:
        """Return one rank of a Plan. `slower`: the factor of its class's times."""
        sharding, offer = seat.sharding, seat.offer
        last = sharding.last_layer
        prior = (made.low_bytes, made.likely_bytes, made.high_bytes)
        learned = self.learned.memory(sharding.strategy, offer.gpu_class)
        low, likely, high = now = learned.of(*prior)
        return Shard(
            rank=rank,
            gpu_uuid=offer.uuid,
            gpu_label=offer.label,
            gpu_name=offer.name,
            first_layer=sharding.first_layer,
            last_layer=len(self.spec.layers) if last is None else last,
            share_ratio=sharding.share_ratio,
            components=dict(made.components),
            low_bytes=low,
            likely_bytes=likely,
            high_bytes=high,
            prior_likely_bytes=made.likely_bytes if now != prior else 0,
            prior_high_bytes=made.high_bytes if now != prior else 0,
            total_bytes=offer.memory_total_bytes,
            used_bytes=offer.used_bytes,
            free_bytes=offer.free_bytes,
            node=offer.node,
            stage=seat.stage,
            replica=seat.replica,
            tensor_rank=seat.tensor_rank,
            chunks=sharding.chunks,
            busy_seconds=seat.busy_seconds * slower,
        )

    def plan(
        self,
        strategy: str,
        setting: Setting,
        seats: Sequence[RankPlacement],
        time: StepTime,
        *,
        why: Sequence[str],
        launch: dict[str, Any],
        title: str = "",
    ) -> Plan:
        """Return a Plan made of its ranks."""
        offers = [seat.offer for seat in seats]
        outside = {name: context_of(card_of(name)) for name in {o.name for o in offers}}
        kinds = dict.fromkeys(
            (seat.sharding, outside[seat.offer.name]) for seat in seats
        )
        made = {one: self.estimate(setting, *one) for one in kinds}
        learned = self.learned.step(offer.gpu_class for offer in offers)
        prior_seconds, time = time.total_seconds, time.times(learned.ratio)
        shards = tuple(
            self.shard(
                rank,
                seat,
                made[seat.sharding, outside[seat.offer.name]],
                learned.ratio,
            )
            for rank, seat in enumerate(seats)
        )
        needs = needs_by_node(
            self.spec, setting.workload, [(one.offer, one.sharding) for one in seats]
        )
        kept = fullest_node(needs)[1] if needs else HostNeed()
        comfortable = all(shard.headroom_bytes >= 0 for shard in shards)
        bound = bound_by(shards)
        total = time.total_seconds
        saves = self._fused_saves(setting, seats, launch) * learned.ratio
        decode = self._decode(setting, seats, learned.ratio)
        told = (*why, *decode_words(decode, setting.workload, total))
        return Plan(
            strategy=strategy,
            title=title or TITLES[strategy],
            model=self.spec.name,
            parameter_count=self.spec.parameter_count,
            layer_count=len(self.spec.layers),
            node=offers[0].node,
            nodes=tuple(dict.fromkeys(offer.node for offer in offers)),
            workload=setting.workload,
            remedies=self._remedies(setting, made),
            shards=shards,
            fit="comfortable" if comfortable else "tight",
            step_seconds=total,
            **asdict(time),
            # Tensors without a matrix product (a bare embedding) take no known time.
            units_per_second=self.units(setting.workload) / total if total else 0.0,
            why=(*told, sentence("Limited by {bound}.", bound=bound)),
            decode_seconds=decode.seconds if decode else 0.0,
            decode_tokens_per_second=decode.tokens_per_second if decode else 0.0,
            notes=(
                *notes_of(setting, offers, made.values(), comfortable=comfortable),
                *pass_notes(self._pass_seconds(setting, seats), saves, total),
                *host_notes(needs, offers),
                *learned_notes(learned, shards),
                *batch_norm_notes(self.spec, setting.workload),
            ),
            prior_step_seconds=prior_seconds if learned.ratio != 1 else 0.0,
            absurd=why_absurd(setting.workload, time, decode),
            activations_are_a_guess=self.spec.activations_are_a_guess,
            bound_by=bound,
            fused_saves_seconds=saves,
            quota_gpu_seconds=sum(offer.weight for offer in offers) * total,
            disturbance=sum(
                offer.compute_processes + (offer.util_pct or 0.0) / 100
                for offer in offers
                if offer.compute_processes
            ),
            host_memory_bytes=kept.memory_bytes,
            host_disk_bytes=kept.disk_bytes,
            troubled=sum(bool(offer.health) for offer in offers),
            launch=launch_of(
                strategy, setting, [(s.offer, s.sharding) for s in seats], launch
            ),
        )

    def _pass_seconds(self, setting: Setting, seats: Sequence[RankPlacement]) -> float:
        """Return the longest time of a rank's passes over its memory."""
        runs = max(seats[0].sharding.microbatches, setting.workload.accumulation)
        kinds = {(one.sharding, one.offer.name): one for one in seats}.values()
        longest = 0.0
        for seat in kinds:
            ranges = layer_ranges(seat.sharding)
            passed = [self.passes(setting, seat.sharding, *r) for r in ranges]
            stage, shared = seat.sharding.stage, seat.sharding.shard_degree
            parts = [one.of_rank(runs, stage, shared) for one in passed]
            moved = sum(runs * each + once for each, once in parts)
            longest = max(longest, moved / memory_bandwidth(seat.offer))
        return longest

    def _fused_saves(
        self, setting: Setting, seats: Sequence[RankPlacement], launch: dict[str, Any]
    ) -> float:
        """Return the seconds of a step by which a fused optimizer would be faster."""
        workload = setting.workload
        if (
            not workload.trains
            or workload.optimizer_loop == "fused"
            or workload.optimizer not in ACCESSES
            or workload.accelerator == "cpu"
            or "reduce_bucket_size" in launch
        ):
            return 0.0
        fused = replace(setting, workload=workload.replace(optimizer_loop="fused"))
        longest = 0.0
        for seat in {(one.sharding, one.offer.name): one for one in seats}.values():
            sharding, moved = seat.sharding, 0.0
            for part in layer_ranges(sharding):
                moved += self.passes(setting, sharding, *part).updated_bytes
                moved -= self.passes(fused, sharding, *part).updated_bytes
            if sharding.stage:
                moved /= sharding.shard_degree
            longest = max(longest, moved / memory_bandwidth(seat.offer))
        return longest

    def _decode(
        self, setting: Setting, seats: Sequence[RankPlacement], slower: float
    ) -> DecodeTime | None:
        """Return the time of one more token: every stage in turn, with its slowest
        replica.
        """
        workload = setting.workload
        if not is_generated(self.spec, workload):
            return None
        link = self.link([seat.offer for seat in seats])
        spec = self.spec_of(setting)
        stages: dict[int, float] = {}
        for seat in seats:
            costs = self.costs(setting, seat.sharding)
            taken = rank_seconds(
                stage_layers(costs, seat.sharding),
                spec,
                workload,
                seat.sharding,
                seat.offer,
                link,
            )
            stages[seat.stage] = max(taken, stages.get(seat.stage, 0.0))
        spent = sum(stages.values()) * slower
        blocks = sum(one.kind not in ("embedding", "head") for one in spec.layers)
        loop = blocks * FORWARD_BLOCK_SECONDS
        return DecodeTime(spent, workload.batch / spent, loop) if spent else None

    def _remedies(
        self,
        setting: Setting,
        made: Mapping[tuple[Sharding, int], Estimate],
    ) -> tuple[str, ...]:
        largest, _ = max(made, key=lambda one: made[one].likely_bytes)
        return explain(
            self.asked,
            setting,
            lambda tried: self.need_bytes(
                tried, replace(largest, offload_optimizer=tried.offload)
            ),
        )

    def units(self, workload: Workload) -> float:
        """Return the tokens (text) or images (vision) of one step."""
        length = 1 if self.fixed_length else workload.sequence_length
        return float(workload.batch * length)


def layer_ranges(one: Sharding) -> tuple[tuple[int, int | None], ...]:
    """Return (first, one past the last) layer of each piece of the model of a rank."""
    return one.chunks or ((one.first_layer, one.last_layer),)


def worth_ratio(context: SearchContext) -> float:
    """Return the part of the time that a second Plan of a strategy may need."""
    return 1.0 if context.greedy else WORTH_RATIO


def mildest_unless_slow(
    context: SearchContext, found: Sequence[Timed], seconds: Callable[[Timed], float]
) -> Timed:
    """Return the first result, or the fastest one if that is worth the difference.

    Args:
        found: of equally harmful settings, the mildest one first.
        seconds: of a step of a result.
    """
    fastest = min(found, key=seconds)
    slow = seconds(fastest) <= worth_ratio(context) * seconds(found[0])
    return fastest if slow else found[0]
