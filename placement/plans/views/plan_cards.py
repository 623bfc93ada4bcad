"""Plans for pages: cards, the table of all candidates, the verdict."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from django.utils.translation import gettext, ngettext

from placement.planner.launch.execution import why_not
from placement.planner.memory.estimate import Estimate
from placement.planner.model.spec import ModelSpec
from placement.planner.values.humanize import gib, listed, seconds
from placement.planner.values.objective import OBJECTIVE_WORDS, is_recommendable
from placement.planner.values.plan import Plan, PlanSet
from placement.plans.measured_error import Record, Records
from placement.plans.views import bar_chart
from placement.plans.views.bar_chart import Bar
from placement.plans.views.schedule_chart import Schedule, schedule_of
from telemetry.protocol.sentences import Sentence
from telemetry.web.recognition import shown
from telemetry.web.translation import translated

MOST_CARDS = 6
IMAGES, TOKENS = "images", "tokens"
MENTION_GAIN = 1.15
"""How much faster another Plan must be to be mentioned in the verdict."""


@dataclass(frozen=True)
class PlanCard:
    """One Plan as a page shows it."""

    plan: Plan
    key: str
    bars: tuple[Bar, ...]
    time: Bar
    where: str
    step: str
    speed: str
    headroom: str
    own_reservation: int | None
    why_no_recipe: str
    """Why no recipe can run it. "": one can."""
    schedule: Schedule | None
    record: Record | None = None
    """The results of similar plans on this site."""


def plan_key(plan: Plan) -> str:
    """Return the key of a Plan within its PlanSet."""
    return f"{plan.strategy}|{','.join(plan.gpu_uuids)}"


def strategy_of_key(key: str) -> str:
    """Return the strategy that a key names; the browser may have sent any text."""
    return key.partition("|")[0]


def own_reservation(plan: Plan, own: Mapping[str, int]) -> int | None:
    """Return the one Reservation that already holds all of a Plan's Gpus."""
    held = {own.get(uuid) for uuid in plan.gpu_uuids}
    return held.pop() if len(held) == 1 else None


def cards(plans: Sequence[Plan], own: Mapping[str, int], units: str) -> list[PlanCard]:
    """Return the Plans to show: the best of each strategy, best first."""
    best: dict[str, Plan] = {}
    for plan in plans:
        best.setdefault(plan.strategy, plan)
    return [card(plan, own, units) for plan in list(best.values())[:MOST_CARDS]]


def card(plan: Plan, own: Mapping[str, int], units: str) -> PlanCard:
    """Return one Plan as a page shows it."""
    tightest = min(plan.shards, key=lambda shard: shard.headroom_bytes)
    left = _headroom_or_lack(tightest.headroom_bytes)
    if len(plan.shards) > 1:
        left = gettext("%(size)s on %(gpu)s") % {
            "size": left,
            "gpu": tightest.gpu_label,
        }
    return PlanCard(
        plan=plan,
        key=plan_key(plan),
        bars=tuple(bar_chart.shard_bar(shard, plan) for shard in plan.shards),
        time=bar_chart.time_bar(plan),
        where=_gpus_text(plan),
        step=_step(plan),
        speed=speed(plan, units),
        headroom=left,
        own_reservation=own_reservation(plan, own),
        why_no_recipe=why_not({"strategy": plan.strategy, "launch": plan.launch}),
        schedule=schedule_of(plan),
    )


def with_records(shown: Sequence[PlanCard]) -> list[PlanCard]:
    """Return cards with the results of similar plans, read once for all."""
    records = Records()
    return [replace(one, record=records.of(one.plan)) for one in shown]


def speed(plan: Plan, units: str) -> str:
    """Return the throughput of a Plan. A dash: unknown."""
    if not plan.step_seconds:
        return "–"
    pace = f"{plan.units_per_second:,.0f}"
    if units == IMAGES:
        return gettext("%(pace)s images/s") % {"pace": pace}
    return gettext("%(pace)s tokens/s") % {"pace": pace}


def units_of(image_tokens: int) -> str:
    """Return the unit of ``units_per_second``: images of a vision model, or tokens."""
    return IMAGES if image_tokens else TOKENS


def units_of_spec(spec: ModelSpec) -> str:
    """Return the unit for a model."""
    return units_of(spec.shape.image_tokens if spec.shape else 0)


def legend(shown: Iterable[Bar]) -> list[tuple[str, str]]:
    """Return (key, words) of every component on some bar, in order."""
    there = {piece.key for bar in shown for piece in bar.pieces}
    return [(key, words) for key, words in bar_chart.WORDS.items() if key in there]


def candidates(found: PlanSet) -> list[dict[str, object]]:
    """Return every Plan and every rejected strategy as rows of one table."""
    rows: list[dict[str, object]] = [
        {
            "title": plan.title,
            "where": _short(plan),
            "step": _step(plan),
            "left": _headroom_or_lack(
                min(shard.headroom_bytes for shard in plan.shards)
            ),
            "why": _against(plan, found),
            "changed": "; ".join(short_remedies(plan)),
        }
        for plan in found.plans
    ]
    rows += [
        {
            "title": lost.title,
            "lost": True,
            "missing": gib(lost.missing_bytes) if lost.missing_bytes else "",
            "gpu": lost.gpu_label,
            "why": lost.reason,
            "change": lost.cheapest_change,
        }
        for lost in found.refusals
    ]
    return rows


def _against(plan: Plan, found: PlanSet) -> str:
    """Return why a fitting Plan has its place in the ranking."""
    first = found.plans[0]
    objective = OBJECTIVE_WORDS[found.wish]
    tight = [gettext("Tight: only the minimum fits.")] if plan.fit == "tight" else []
    if plan is first:
        first_choice = gettext("First choice: %(wish)s.") % {
            "wish": translated(objective)
        }
        trade = [shown(plan.trade)] if plan.trade else []
        return " ".join([*tight, first_choice, *trade])
    said = []
    if plan.workload.offload != "none" and first.workload.offload == "none":
        said.append(gettext("offloads"))
    if plan.workload.checkpointing == "full" != first.workload.checkpointing:
        said.append(gettext("recomputes activations"))
    if plan.spans_nodes and not first.spans_nodes:
        said.append(gettext("over several nodes"))
    if plan.disturbance > first.disturbance:
        said.append(gettext("beside processes of others"))
    beside = (
        gettext("Compared with the first: %(said)s.") % {"said": ", ".join(said)}
        if said
        else ""
        if plan.trade
        else gettext("As good as the first.")
    )
    absurd = [shown(plan.absurd)] if plan.absurd else []
    trade = [shown(plan.trade)] if plan.trade else []
    return " ".join(filter(None, [*absurd, *tight, *trade, beside]))


def estimate_rows(one: Estimate) -> list[dict[str, object]]:
    """Return the components at the peak, largest first, with their share."""
    total = max(1, sum(one.components.values()))
    return [
        {
            "key": key,
            "words": str(bar_chart.WORDS.get(key, key.replace("_", " "))),
            "bytes": size,
            "pct": 100 * size / total,
        }
        for key, size in sorted(one.components.items(), key=lambda kv: -kv[1])
        if size > 0
    ]


def verdict(found: PlanSet, *, start: str = "", now: PlanSet | None = None) -> str:
    """Return the answer in a few sentences.

    Args:
        found: the Plans of the first card.
        start: when it can begin, in words. "": at the requested time.
        now: the Plans for the Gpus that are free now, if ``found`` is for later.
    """
    if not found.plans:
        return _no_plan_reason(found)
    best = found.plans[0]
    about = ""
    if best.step_seconds:
        about = (
            gettext("about %(time)s a step")
            if best.workload.trains
            else gettext("about %(time)s a call")
        ) % {"time": _step(best)}
    where = ", ".join(filter(None, [_gpus_text(best), about]))
    said = [] if now is None else [_later_reason(now)]
    if found.advice:
        said.append(shown(found.advice))
    if best.absurd:
        said.append(
            gettext("The best plan is not sensible (%(where)s): %(why)s")
            % {"where": where, "why": shown(best.absurd)}
        )
    elif best.fit == "tight":
        said.append(
            gettext("May run out of memory on %(where)s: only the minimum is free.")
            % {"where": where}
        )
    elif not is_recommendable(best, found.workload):
        said.append(
            gettext(
                "Does not fit in GPU memory. Runs on %(where)s, with a part of its "
                "state outside the GPU, which is slow."
            )
            % {"where": where}
        )
    else:
        if start:
            where = gettext("%(where)s from %(start)s") % {
                "where": _gpus_text(best),
                "start": start,
            }
            where = ", ".join(filter(None, [where, about]))
        said.append(gettext("Fits on %(where)s.") % {"where": where})
    changes = short_remedies(best)
    said += [f"{text[0].upper()}{text[1:]}." for text in changes]
    sensible = [one for one in found.plans if not one.absurd] or found.plans
    faster = min(sensible, key=lambda plan: plan.step_seconds)
    gain = best.step_seconds / faster.step_seconds if faster.step_seconds else 1
    if gain >= MENTION_GAIN:
        said.append(
            gettext("%(gain)s times faster on %(where)s: %(title)s.")
            % {
                "gain": f"{gain:.1f}",
                "where": _gpus_text(faster),
                "title": shown(faster.title),
            }
        )
    return " ".join(said)


def _later_reason(now: PlanSet) -> str:
    """Return why the answer is not for now."""
    if not now.plans:
        if _is_unsupported(now):
            return gettext("No GPU that is free can run it as asked for.")
        short = any(lost.missing_bytes for lost in now.refusals)
        return (
            gettext("Does not fit on what is free now.")
            if short
            else gettext("No GPU is free now.")
        )
    if now.plans[0].fit == "tight":
        return gettext("Does not safely fit on what is free now.")
    return gettext("Does not fit in the GPU memory that is free now.")


def short_remedies(plan: Plan) -> list[str]:
    """Return the changes, without the bytes that each one saves."""
    return [
        shown(
            str(text.values["words"])
            if isinstance(text, Sentence)
            else _without_figures(text)
        )
        for text in plan.remedies
    ]


def _without_figures(text: str) -> str:
    """Return a stored remedy without the figures in brackets at its end."""
    return text.partition(" (need")[0]


def gpus_more(more: int) -> str:
    """Return how many GPUs more another Plan has, or fewer if it is negative."""
    if more > 0:
        return ngettext("%(n)s GPU more", "%(n)s GPUs more", more) % {"n": more}
    return ngettext("%(n)s GPU fewer", "%(n)s GPUs fewer", -more) % {"n": -more}


def _is_unsupported(found: PlanSet) -> bool:
    """Whether a GPU is left out only because of what its card does not have."""
    return any(left.code == "unsupported" for left in found.left_out)


def _no_plan_reason(found: PlanSet) -> str:
    if _is_unsupported(found):
        return gettext(
            "No GPU that is free can run it as asked for. The reasons are listed below."
        )
    short = [lost for lost in found.refusals if lost.missing_bytes]
    if not short:
        return gettext("No GPU is free then. The reasons are listed below.")
    nearest = min(short, key=lambda lost: lost.missing_bytes)
    said = gettext(
        "It does not fit. Nearest: %(title)s, where %(gpu)s lacks %(missing)s."
    ) % {
        "title": shown(nearest.title),
        "gpu": nearest.gpu_label,
        "missing": gib(nearest.missing_bytes),
    }
    if not nearest.cheapest_change:
        return said
    change = shown(nearest.cheapest_change)
    return " ".join(
        [said, gettext("It would fit with %(change)s.") % {"change": change}]
    )


def _step(plan: Plan) -> str:
    """Return a step's time. A dash: the file names no computation."""
    return seconds(plan.step_seconds) if plan.step_seconds else "–"


def _headroom_or_lack(headroom_bytes: int) -> str:
    """Return the free memory of a Plan, or the missing memory."""
    if headroom_bytes < 0:
        return gettext("%(size)s too little") % {"size": gib(-headroom_bytes)}
    return gib(headroom_bytes)


def _short(plan: Plan) -> str:
    first = plan.shards[0].gpu_label
    return (
        first
        if len(plan.shards) == 1
        else gettext("%(count)s of %(node)s")
        % {"count": len(plan.shards), "node": plan.node}
    )


def _gpus(count: int) -> str:
    return ngettext("%(n)s GPU", "%(n)s GPUs", count) % {"n": count}


def _gpus_text(plan: Plan) -> str:
    first = plan.shards[0]
    if len(plan.shards) == 1:
        return gettext("one %(model)s (%(gpu)s)") % {
            "model": first.gpu_name,
            "gpu": first.gpu_label,
        }
    names = {shard.gpu_name for shard in plan.shards}
    what = f"{len(plan.shards)} {first.gpu_name}"
    if len(names) > 1:
        what = _gpus(len(plan.shards))
    nodes = shown(listed(plan.nodes or (plan.node,)))
    return f"{what} ({nodes})"
