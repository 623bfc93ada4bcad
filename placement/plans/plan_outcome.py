"""The outcomes of Plans: measured while a Job runs, settled when it has ended.

A row begins when a Job with a Plan runs. While it runs, the row records the memory of
its processes on each Gpu (its node reports it every second) and the times of its steps.
At the end the numbers in the log give the pace and the allocator's peak, and the errors
are computed. `why_not_counted` decides which outcomes enter the site's measured error.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from placement.jobs.nodes import log_store
from placement.models import Job, PlanOutcome
from placement.planner.launch.quantized_bases import planned_form
from placement.planner.launch.recipes import (
    OF_PRETRAINED,
    OWN_MODEL,
    TINY_TRANSFORMER,
    runs_by_plan,
)
from placement.planner.model.spec import ModelSpec
from placement.planner.values.errors import PlanInvalid
from placement.planner.values.plan import Plan
from placement.plans.measured_error import class_name
from placement.rules.step_pace import marked, pace_of
from telemetry.models import Gpu, UsageSummary
from telemetry.protocol.sentences import sentence

SUMMARY_SECONDS = 300.0
"""How long after the end the minutes' maximum is waited for, if the node could not
report the memory of the Job's own processes.
"""
LOG_SECONDS = 600.0
"""How long after the end an incomplete log is waited for."""
SAME_MODEL = 0.01
"""Largest part by which the parameters of a run may differ from the plan's."""
MOST_SETTLED = 100
"""Rows per run."""
ENDED_BADLY = (Job.State.FAILED, Job.State.LOST)
ALONE_BYTES = 2**30
"""A Gpu with less memory of others than this counts as the Job's alone."""


def begin(job: Job, *, now: datetime) -> PlanOutcome | None:
    """Create a Job's row. None: its Plan has a form that is no longer read."""
    assert job.plan is not None
    try:
        plan = Plan.from_json(job.plan.plan)
    except PlanInvalid:
        return None
    rows = Gpu.objects.filter(uuid__in=plan.gpu_uuids).select_related("pool", "node")
    known = {row.uuid: row for row in rows}
    return PlanOutcome.objects.get_or_create(
        job=job,
        defaults={
            "strategy": plan.strategy,
            "gpu_class": class_name(row.pool.gpu_class for row in known.values()),
            "precision": plan.workload.precision,
            "simulated": any(row.node.simulated for row in known.values()),
            "predicted_step_seconds": plan.step_seconds,
            "prior_step_seconds": plan.prior_step_seconds or plan.step_seconds,
            "predicted_units_per_second": plan.units_per_second,
            "gpus": [_predicted(shard) for shard in plan.shards],
            "begun_at": job.started_at or now,
        },
    )[0]


def _predicted(shard: Any) -> dict[str, Any]:
    """Return one rank of a Plan in the form of a row."""
    outside = shard.components.get("context", 0)
    return {
        "uuid": shard.gpu_uuid,
        "label": shard.gpu_label,
        "total_bytes": shard.total_bytes,
        "others_bytes": shard.used_bytes,
        "low_bytes": shard.low_bytes,
        "likely_bytes": shard.likely_bytes,
        "high_bytes": shard.high_bytes,
        "prior_likely_bytes": shard.prior_likely_bytes or shard.likely_bytes,
        "prior_high_bytes": shard.prior_high_bytes or shard.high_bytes,
        "tensor_bytes": shard.low_bytes - outside,
        "actual_bytes": None,
        "actual_tensor_bytes": None,
        "source": "",
    }


# --- while it runs ---


def record_use(
    outcome: PlanOutcome, held: Mapping[str, int], step: float | None, now: datetime
) -> bool:
    """Record the Job's memory by UUID and its last step. Return whether it is new."""
    grown = False
    for row in outcome.gpus:
        bytes_now = held.get(row["uuid"], 0)
        if bytes_now > (row["actual_bytes"] or 0):
            row |= {"actual_bytes": bytes_now, "source": "processes"}
            grown = True
    marks = [tuple(one) for one in outcome.marks]
    if step is not None:
        fresh = marked(marks, (now.timestamp(), step))
        grown = grown or fresh != marks
        marks = fresh
    if grown:
        outcome.marks = [list(one) for one in marks]
        PlanOutcome.objects.filter(pk=outcome.pk, settled_at=None).update(
            gpus=outcome.gpus, marks=outcome.marks
        )
    return grown


def measured(outcome: PlanOutcome, job: Job) -> PlanOutcome:
    """Return the row with the present values of the log. Nothing is written."""
    rows = log_store.numbers(job).rows
    pace = pace_of(rows, [(at, step) for at, step in outcome.marks])
    outcome.step_seconds, outcome.step_source = pace.step_seconds, pace.source
    outcome.steps_seen = max(0, pace.steps)
    outcome.units_per_second = pace.units_per_second
    if pace.units_per_second is None and pace.step_seconds:
        work = outcome.predicted_units_per_second * outcome.predicted_step_seconds
        outcome.units_per_second = work / pace.step_seconds
    for rank, row in enumerate(outcome.gpus):
        peaks = [one.get(f"peak_bytes_{rank}", 0.0) for one in rows]
        if len(outcome.gpus) == 1:
            peaks += [one.get("peak_bytes", 0.0) for one in rows]
        if peaks and max(peaks) > 0:
            row["actual_tensor_bytes"] = int(max(peaks))
    _compare(outcome)
    return outcome


def _compare(outcome: PlanOutcome) -> None:
    """Compute the errors against the prior."""
    outcome.step_ratio = None
    if outcome.step_seconds and outcome.prior_step_seconds:
        outcome.step_ratio = outcome.step_seconds / outcome.prior_step_seconds
    read = [row for row in outcome.gpus if row["actual_bytes"]]
    outcome.memory_ratio = max(
        (row["actual_bytes"] / row["prior_likely_bytes"] for row in read), default=None
    )
    outcome.high_ratio = max(
        (row["actual_bytes"] / row["prior_high_bytes"] for row in read), default=None
    )


# --- once it has ended ---


def due(now: datetime) -> Iterable[PlanOutcome]:
    """Rows of ended Jobs that are not settled."""
    return (
        PlanOutcome.objects.filter(settled_at=None)
        .exclude(job__state__in=Job.State.live())
        .select_related("job__plan", "job__node")
        .order_by("begun_at", "pk")[:MOST_SETTLED]
    )


def settle_outcome(outcome: PlanOutcome, now: datetime) -> bool:
    """Settle one row if all its values have arrived. Otherwise wait."""
    job = outcome.job
    ended = job.ended_at or now
    if log_store.numbers(job, log_store.SCAN_BYTES).left_bytes:
        return False
    if log_store.size(job) < job.log_bytes and now - ended < timedelta(
        seconds=LOG_SECONDS
    ):
        return False
    if not all(row["actual_bytes"] for row in outcome.gpus):
        counted = _from_minutes(outcome, job)
        if not counted and now - ended < timedelta(seconds=SUMMARY_SECONDS):
            return False
    measured(outcome, job)
    outcome.not_counted = why_not_counted(outcome, job)[:200]
    outcome.settled_at = now
    with transaction.atomic(durable=True):
        row = PlanOutcome.objects.select_for_update().filter(pk=outcome.pk).first()
        if row is None or row.settled_at is not None:
            return False
        outcome.save()
    return True


def _from_minutes(outcome: PlanOutcome, job: Job) -> bool:
    """Fill in the maximum of each Gpu from minutes. False: not counted yet."""
    rows = UsageSummary.objects.filter(
        kind=UsageSummary.Kind.JOB, job_id=job.pk, gpu__isnull=False
    )
    found = dict(rows.filter(n__gt=0).values_list("gpu__uuid", "memory_max_bytes"))
    if not found:
        return not rows.filter(next_at__isnull=False).exists()
    for row in outcome.gpus:
        highest = found.get(row["uuid"])
        if not row["actual_bytes"] and highest and row["others_bytes"] < ALONE_BYTES:
            row |= {
                "actual_bytes": max(1, highest - row["others_bytes"]),
                "source": "gpu",
            }
    return True


def why_not_counted(outcome: PlanOutcome, job: Job) -> str:
    """Return why an outcome does not measure the planner. "": it does."""
    assert job.plan is not None
    if job.state in ENDED_BADLY:
        return sentence("the job {state}", state=job.state)
    if outcome.step_ratio is None and outcome.memory_ratio is None:
        return sentence("neither its step time nor its memory could be read")
    if job.kind != Job.Kind.RECIPE:
        return ""
    if not runs_by_plan(job.plan.plan):
        return sentence("the recipe ran without its plan")
    if job.recipe in OF_PRETRAINED and (why := _other_model(job)):
        return why
    return _other_work(job.plan.spec, job.plan.plan, job.recipe, job.recipe_settings)


def _other_model(job: Job) -> str:
    """Return the difference between a Job's model and its Plan's. "": none."""
    assert job.plan is not None
    rows = log_store.numbers(job).rows
    ran = next((row["parameters"] for row in rows if "parameters" in row), None)
    planned = job.plan.plan.get("parameter_count", 0)
    if ran is not None and abs(ran - planned) > SAME_MODEL * planned:
        return sentence(
            "it trained a model of {ran} parameters, planned were {planned}",
            ran=f"{ran:,.0f}",
            planned=f"{planned:,}",
        )
    trained = next(
        (row.get("trainable_parameters", ran) for row in rows if "parameters" in row),
        None,
    )
    to_train = ModelSpec.from_json(job.plan.spec).trainable_count
    if trained is not None and abs(trained - to_train) > SAME_MODEL * to_train:
        return sentence(
            "it trained {ran} of the parameters, planned were {planned}",
            ran=f"{trained:,.0f}",
            planned=f"{to_train:,}",
        )
    form = planned_form(job.plan.plan, job.plan.spec)
    if (kept := job.recipe_settings.get("weights", form)) != form:
        return sentence(
            "its frozen weights were {ran}, planned were {planned}",
            ran=kept,
            planned=form,
        )
    tokens = job.plan.plan["workload"].get("sequence_length")
    if job.recipe_settings.get("seq", tokens) != tokens:
        return sentence(
            "its sequences had {ran} tokens, planned were {planned}",
            ran=job.recipe_settings.get("seq"),
            planned=tokens,
        )
    return ""


def _other_work(
    spec: Mapping[str, Any],
    plan: Mapping[str, Any],
    recipe: str,
    settings: Mapping[str, Any],
) -> str:
    """Return how a recipe's workload differs from its Plan's. "": it does not."""
    if recipe not in (TINY_TRANSFORMER.name, OWN_MODEL.name, *OF_PRETRAINED):
        return sentence("the recipe trains nothing")
    shape = spec.get("shape") or {}
    own = (settings.get("hidden"), settings.get("heads"), settings.get("seq"))
    planned = (
        shape.get("hidden"),
        shape.get("heads"),
        plan["workload"].get("sequence_length"),
    )
    layers = plan.get("layer_count") == settings.get("layers", 0) + 2
    if recipe == TINY_TRANSFORMER.name and not (layers and own == planned):
        return sentence("the recipe trains its own model, not the model of the plan")
    if float(settings.get("seconds_per_step") or 0) > 0:
        return sentence("its steps were slowed down by a setting")
    launch = plan.get("launch", {})
    pieces = [
        launch.get(k) or 1 for k in ("microbatches", "data_degree", "accumulation")
    ]
    ran = int(settings.get("batch") or 0) * pieces[0] * pieces[1] * pieces[2]
    if ran != plan["workload"].get("batch"):
        return sentence(
            "it ran batches of {ran}, planned were {planned}",
            ran=ran,
            planned=plan["workload"].get("batch"),
        )
    return ""
