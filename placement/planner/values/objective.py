"""The objective by which Plans are ranked.

Without an objective: docs/design/placement.md#order-of-choice. With one, it comes
first and the order of choice decides between equals. A tight Plan (one that may run out
of memory) never comes before a comfortable one. Every key ends with the Gpus' names, so
the order does not depend on the order in which the Gpus are listed.

soonest            when its Gpus are free together
fastest            seconds a step
fewest             Gpus
least_disturbance  computing processes of others on its Gpus, then how busy those are
cheapest           quota that a step costs, in weighted GPU-seconds
"""

from typing import Literal, get_args

from placement.planner.values.plan import Plan
from placement.planner.values.strategies import STRATEGIES
from placement.planner.values.workload import Workload
from telemetry.protocol.sentences import sentence

Wish = Literal["soonest", "fastest", "fewest", "least_disturbance", "cheapest"]
WISHES: tuple[Wish, ...] = get_args(Wish)
OBJECTIVE_WORDS: dict[str, str] = {
    "": "recommended",
    "soonest": sentence("soonest start"),
    "fastest": "fastest",
    "fewest": sentence("fewest GPUs"),
    "least_disturbance": sentence("least disturbance of others"),
    "cheapest": sentence("cheapest in quota"),
}
"""What a wish is called on screen."""

Key = tuple[object, ...]


def is_recommendable(one: Plan, asked: Workload) -> bool:
    """Return whether a Plan can be the answer without a warning.

    It keeps memory free on every Gpu, is not tight, and moves nothing to the memory of
    the host or to a drive that was not asked to be there.
    """
    if one.fit == "tight" or any(shard.headroom_bytes < 0 for shard in one.shards):
        return False
    return asked.offload != "none" or not offloads(one)


def offloads(one: Plan) -> bool:
    """Return whether a Plan keeps state outside of its Gpus."""
    return bool(one.launch["offload_optimizer"]) or one.workload.offload != "none"


def rank_key(one: Plan, wish: Wish | None = None) -> Key:
    """Sorts Plans best first."""
    tight = one.fit == "tight"
    return (tight, *_wished(one, wish), *_order_of_choice(one))


def _wished(one: Plan, wish: Wish | None) -> Key:
    if wish == "soonest":
        return (one.wait_seconds,)
    if wish == "fastest":
        return (one.step_seconds,)
    if wish == "fewest":
        return (len(one.shards),)
    if wish == "least_disturbance":
        return (one.disturbance, len(one.shards))
    if wish == "cheapest":
        return (one.quota_gpu_seconds,)
    return ()


def _order_of_choice(one: Plan) -> Key:
    """Mild remedies, clean Gpus, one node, order of strategies, fewer Gpus, faster."""
    return (
        one.launch.get("weights", "full") != "full",
        offloads(one),
        one.workload.optimizer == "adam8bit",
        one.disturbance > 0,
        one.troubled > 0,
        one.spans_nodes,
        one.launch["engine"] != "torch",
        STRATEGIES[one.strategy].place(fast_links=one.launch["fast_links"]),
        len(one.shards),
        one.workload.checkpointing == "full",
        one.step_seconds,
        one.nodes or (one.node,),
        one.gpu_uuids,
    )
