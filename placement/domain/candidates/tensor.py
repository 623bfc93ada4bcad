"""Tensor parallelism: every layer cut over Gpus that fast links join."""

from collections.abc import Sequence
from dataclasses import replace

from placement.domain.offer import GpuOffer
from placement.domain.place import Shortage, choose_equal
from placement.domain.plan import Plan, Refusal
from placement.domain.remedies import Fit, Setting, search
from placement.domain.candidates.hunt import Search, refusal, too_small
from placement.domain.sharding import Sharding, Strategy
from placement.domain.timing import tensor_parallel_time
from placement.domain.words import gib


def tensor(hunt: Search) -> list[Plan] | Refusal:
    """Every layer cut over t Gpus with fast links, t dividing heads and kv heads."""
    shape = hunt.spec.shape
    if hunt.most_gpus < 2:
        return refusal("tensor", "It needs at least two GPUs of one node.")
    if shape is None:
        return refusal("tensor", "How the layers compute is unknown, so no cut is.")
    groups: dict[str, list[GpuOffer]] = {}
    for offer in hunt.offers:
        if offer.link_group:
            groups.setdefault(offer.link_group, []).append(offer)
    widest = max((len(group) for group in groups.values()), default=0)
    if widest < 2:
        return refusal(
            "tensor",
            "It sends activations within every layer, which needs fast links (NVLink) "
            "between the GPUs; these have none.",
        )
    degrees = [
        degree
        for degree in range(2, min(widest, hunt.most_gpus) + 1)
        if shape.heads % degree == 0 and shape.kv_heads % degree == 0
    ]
    if not degrees:
        return refusal(
            "tensor",
            f"{shape.heads} heads and {shape.kv_heads} key/value heads cannot be "
            f"shared evenly by 2 to {min(widest, hunt.most_gpus)} GPUs.",
        )
    nearest: Fit | None = None
    for degree in degrees:
        made, fit = _tensor_plan(hunt, degree, list(groups.values()))
        if made is not None:
            return [made]
        if nearest is None or fit.missing_bytes < nearest.missing_bytes:
            nearest = fit
    fit = nearest or Fit(False)
    free = fit.gpu.free_bytes + fit.missing_bytes if fit.gpu else 0
    change = f"{gib(free)} free on {fit.gpu.label}" if fit.gpu else ""
    return too_small("tensor", fit.gpu, fit.missing_bytes, change)


def _tensor_plan(
    hunt: Search, degree: int, groups: Sequence[Sequence[GpuOffer]]
) -> tuple[Plan | None, Fit]:
    strategy: Strategy = "tensor"
    base = Sharding(strategy=strategy, tensor_degree=degree)

    def place(setting: Setting) -> tuple[GpuOffer, ...] | Shortage:
        sharding = replace(base, offload_optimizer=setting.offload)
        need = hunt.need_bytes(setting, sharding)
        tried = [
            choose_equal(group, degree, need)
            for group in groups
            if len(group) >= degree
        ]
        good = [found for found in tried if not isinstance(found, Shortage)]
        if good:
            return good[0]
        short = [found for found in tried if isinstance(found, Shortage)]
        return min(short, key=lambda found: found.missing_bytes)

    def fit(setting: Setting) -> Fit:
        placed = place(setting)
        if isinstance(placed, Shortage):
            return Fit(False, placed.missing_bytes, placed.gpu)
        return Fit(True)

    setting, nearest = search(hunt.asked, 1, hunt.limits, fit)
    if setting is None:
        return None, nearest
    chosen = place(setting)
    assert not isinstance(chosen, Shortage)
    sharding = replace(base, offload_optimizer=setting.offload)
    costs = hunt.costs(setting, sharding)
    time = tensor_parallel_time(costs, setting.workload, chosen)
    why = [
        f"Every layer is cut over {degree} GPUs joined by fast links; each holds "
        f"1/{degree} of the large matrices.",
        "Activations are summed between the GPUs several times in every layer.",
    ]
    launch = {
        "tensor_degree": degree,
        "microbatch": setting.workload.microbatch(),
    }
    made = hunt.plan(
        "tensor",
        setting,
        chosen,
        (sharding,) * degree,
        time,
        why=why,
        launch=launch,
    )
    return made, Fit(True)
