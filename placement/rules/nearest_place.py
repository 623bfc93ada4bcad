"""The place nearest to the present one of a Job, among equally good places.

Gpus of one node that offer the same (class, room, speed) are interchangeable, so a Plan
on some of them is as good on others of them. If links differ, the planner is called
again. `nearest_set` swaps in the Gpus that the Job already holds. `renamed` puts a
pipeline's stages on the Gpus that already hold their layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations

from placement.planner.values.gpu_availability import GpuOffer
from placement.planner.values.plan import Plan, Shard

MOST_PERMUTED = 6
"""Most interchangeable Gpus of one kind whose stages are tried in every order."""


def nearest_set(
    chosen: Sequence[str], held: Sequence[str], offers: Mapping[str, GpuOffer]
) -> tuple[str, ...]:
    """Return the same number of Gpus (UUIDs), with as many of the held ones as
    possible.
    """
    kept = [uuid for uuid in chosen if uuid in held]
    spare = [uuid for uuid in held if uuid not in chosen and uuid in offers]
    for uuid in chosen:
        if uuid in held:
            continue
        twin = next((one for one in spare if _as_good(offers[one], offers[uuid])), None)
        if twin is not None:
            spare.remove(twin)
        kept.append(twin or uuid)
    return tuple(kept)


def _as_good(one: GpuOffer, other: GpuOffer) -> bool:
    """Return whether a Plan on the other Gpu would be as good on this one."""
    return (
        one.usable
        and one.free_bytes >= other.free_bytes
        and one.share_ratio >= other.share_ratio
        and _kind(one) == _kind(other)
    )


def _kind(offer: GpuOffer) -> tuple[object, ...]:
    return (
        offer.node,
        offer.gpu_class,
        offer.name,
        offer.memory_total_bytes,
        offer.peak_flops,
        offer.link_group,
    )


def moved_bytes(plan: Plan, now: Plan) -> int:
    """Return the bytes of weights and optimizer that Gpus would have to receive.

    Activations are computed again and are not transferred.
    """
    held = {shard.gpu_uuid: shard for shard in now.shards}
    return sum(_missing_bytes(shard, held.get(shard.gpu_uuid)) for shard in plan.shards)


STATES = ("parameters", "optimizer")
"""Components that are transferred. At a step boundary there are no gradients."""


def _missing_bytes(shard: Shard, held: Shard | None) -> int:
    """Return a Gpu's new state less the layers that it already has."""
    state = sum(
        size for name, size in shard.components.items() if name.startswith(STATES)
    )
    layers = max(1, shard.last_layer - shard.first_layer)
    if held is None:
        return state
    both = min(shard.last_layer, held.last_layer) - max(
        shard.first_layer, held.first_layer
    )
    return round(state * (layers - max(0, both)) / layers)


def renamed(plan: Plan, now: Plan, offers: Mapping[str, GpuOffer]) -> Plan:
    """Return the Plan with interchangeable Gpus in the order that moves the fewest
    bytes.
    """
    kinds: dict[tuple[object, ...], list[int]] = {}
    for index, shard in enumerate(plan.shards):
        offer = offers.get(shard.gpu_uuid)
        if offer is not None:
            key = (*_kind(offer), offer.free_bytes, offer.share_ratio)
            kinds.setdefault(key, []).append(index)
    order = list(plan.gpu_uuids)
    held = {shard.gpu_uuid: shard for shard in now.shards}
    for places in kinds.values():
        if not 1 < len(places) <= MOST_PERMUTED:
            continue
        uuids = [plan.shards[index].gpu_uuid for index in places]
        best = min(
            permutations(uuids),
            key=lambda way, places=places: sum(  # type: ignore[misc]
                _missing_bytes(plan.shards[index], held.get(uuid))
                for index, uuid in zip(places, way, strict=True)
            ),
        )
        for index, uuid in zip(places, best, strict=True):
            order[index] = uuid
    return _reordered(plan, order)


def _reordered(plan: Plan, order: Sequence[str]) -> Plan:
    """Return the Plan with its shards on these Gpus, wherever they are named."""
    if tuple(order) == plan.gpu_uuids:
        return plan
    own = {shard.gpu_uuid: shard for shard in plan.shards}
    shards = tuple(
        replace(
            shard,
            gpu_uuid=uuid,
            gpu_label=own[uuid].gpu_label,
            gpu_name=own[uuid].gpu_name,
            total_bytes=own[uuid].total_bytes,
            used_bytes=own[uuid].used_bytes,
            free_bytes=own[uuid].free_bytes,
        )
        for shard, uuid in zip(plan.shards, order, strict=True)
    )
    names = dict(zip(plan.gpu_uuids, order, strict=True))
    labels = {own[a].gpu_label: own[b].gpu_label for a, b in names.items()}
    launch = {key: _renamed_in(value, names) for key, value in plan.launch.items()}
    why = tuple(_relabelled(sentence, labels) for sentence in plan.why)
    return replace(plan, shards=shards, launch=launch, why=why)


def _renamed_in(value: object, names: Mapping[str, str]) -> object:
    """Return a launch entry with the new name of every Gpu."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, dict):
        return {key: _renamed_in(one, names) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_renamed_in(one, names) for one in value)
    return value


def _relabelled(sentence: str, labels: Mapping[str, str]) -> str:
    """Replace labels all at once, whole words only."""
    words = sentence.split(" ")
    for index, word in enumerate(words):
        bare = word.rstrip(",.;:)")
        if bare in labels:
            words[index] = labels[bare] + word[len(bare) :]
    return " ".join(words)
