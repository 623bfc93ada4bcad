"""The page of one Job, and the data that its script fetches."""

import re
import signal
from collections.abc import Iterable
from datetime import datetime, timedelta
from math import ceil, floor

from django.http import FileResponse, Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import require_safe

from placement.backfill.queries import gap_of
from placement.jobs import queries as snapshots
from placement.jobs.job_usage import job_usage
from placement.jobs.nodes import log_store, result_files, run_curves
from placement.jobs.views.viewer import reader
from placement.models import Job, JobPart, StoredPlan
from placement.planner.values.errors import PlanInvalid
from placement.planner.values.plan import Plan
from placement.plans.views import plan_cards
from placement.plans.views.outcome_panel import measured_of
from placement.protocol.job_lifecycle import KEPT_DAYS
from placement.protocol.job_parts import first_failed_part
from placement.rules.rebalance_policy import RestartMode
from placement.rules.tracked_runs import TENSORBOARD, tracked_runs
from reservations.models import Allocation, SitePolicy, User
from telemetry.inventory.queries import load_history
from telemetry.models import Node
from telemetry.protocol.sentences import sentence
from telemetry.web.recognition import shown, shown_values
from telemetry.web.translation import translated

LAST_LINES = 12
MOST_RANGE_BYTES = 1024 * 1024
CHART_POINTS = 600
FAILED = frozenset({Job.State.FAILED, Job.State.LOST})
TOLD = ("predicted", "realised", "reason", "waits", "words")
"""Fields of a Job's facts that its page shows as sentences."""
_NUMBER = re.compile(r"-?[0-9]{1,18}")


def _visible_job(request: HttpRequest, pk: int) -> Job:
    """Return a Job that the User may look at. Otherwise 404, without details."""
    jobs = Job.objects.visible_to(reader(request)).select_related(
        "owner", "node", "plan", "backfill", "reservation__membership__account"
    )
    jobs = jobs.prefetch_related("parts__node")
    return get_object_or_404(jobs, pk=pk)


@require_safe
def job_show(request: HttpRequest, pk: int) -> HttpResponse:
    """Show one Job. Its script then updates it live."""
    job = _visible_job(request, pk)
    gpus = _gpus(job)
    ended = job.state not in Job.State.live()
    parts = job.parts.all()
    part = _part(request, parts)
    size = log_store.size(job, part=part)
    lines = log_store.last_lines(job, LAST_LINES, part=_failed_part(job))
    card, units = _plan_card(job.plan)
    return render(
        request,
        "placement/jobs/job_show.html",
        {
            "job": job,
            "log_note": log_store.note(job),
            "gpus": [gpu["label"] for gpu in gpus],
            "steps": snapshots.job_steps(job),
            "events": job.events.all(),
            "card": card,
            "legend": _legend(card),
            "units": units,
            "plan_table": snapshots.plan_table(job.plan) if job.plan else "",
            "ended": ended,
            "may_stop": _may_stop(reader(request), job),
            "failure": failure_of(job),
            "last_lines": "\n".join(lines),
            "parts": [
                (row.number, row.node.name, row.info().rank_words) for row in parts
            ],
            "part": part,
            "log_size": size,
            "only_lines": ended and not size and bool(lines),
            "empty_words": _stored_log(job, part, lines)["empty_words"],
            "beside": sorted(job.script_folder.files) if job.script_folder else [],
            "settings": sorted(job.recipe_settings.items()),
            "usage": job_usage(job, now=timezone.now()),
            "by_slurm": job.node.engine == Node.Engine.SLURM,
            "usage_so_far": not ended,
            "page": _page_data(job, gpus, size) | {"log_part": part},
            "measured": measured_of(job, units) if job.plan_id else None,
            "gap": gap_of(job, now=timezone.now()),
            **_files(request, job),
            **_moving(job),
        },
    )


def _files(request: HttpRequest, job: Job) -> dict[str, object]:
    """Return the context for a Job's results."""
    files = snapshots.job_results(job)
    tracked = tracked_runs([file["path"] for file in files])
    return {
        "files": files,
        "tracked": tracked,
        "events_cut": run_curves.is_cut(job),
        "has_events": any(one.tool == TENSORBOARD for one in tracked),
        "limits": result_files.limits(),
        "mine": job.owner_id == reader(request).pk,
    }


@require_safe
def job_files(request: HttpRequest, pk: int) -> HttpResponse:
    """Return the list of a Job's results as a fragment."""
    job = _visible_job(request, pk)
    context = {"job": job, **_files(request, job)}
    return render(request, "placement/jobs/_job_files.html", context)


@require_safe
def job_measured(request: HttpRequest, pk: int) -> HttpResponse:
    """Return the outcome of a Job's Plan as a fragment."""
    job = _visible_job(request, pk)
    if job.plan is None:
        raise Http404
    shape = job.plan.spec.get("shape") or {}
    units = plan_cards.units_of(shape.get("image_tokens", 0))
    context = {"job": job, "measured": measured_of(job, units), "part": True}
    return render(request, "placement/jobs/_job_measured.html", context)


def _moving(job: Job) -> dict[str, object]:
    """Return the context for moves. {}: the Job cannot be compared with other
    places.
    """
    if job.plan is None:
        return {}
    return {
        "moves": snapshots.job_moves(job),
        "proposal": snapshots.job_proposal(job),
        "restarts": [(way.value, way.label) for way in RestartMode],
    }


def _part(request: HttpRequest, parts: Iterable[JobPart]) -> int:
    """Return the index of the requested node's log. 0, the first, if invalid."""
    text = request.GET.get("part", "")
    return next((row.number for row in parts if str(row.number) == text), 0)


def _failed_part(job: Job) -> int:
    """Return the part by which a Job over several nodes failed. 0 for all others."""
    bad = first_failed_part([row.info() for row in job.parts.all()])
    return bad.number if bad else 0


def _may_stop(user: User, job: Job) -> bool:
    return user.is_operator or job.owner_id == user.pk


def _gpus(job: Job) -> list[dict[str, object]]:
    """Return the Gpus that a Job uses. Before its start, all that it may get."""
    if not job.uses_gpus:
        return []
    rows = Allocation.objects.filter(
        reservation=job.reservation_id, gpu__node__in=job.node_ids()
    )
    if job.gpu_ids:
        # The Gpus that it got are known since its start.
        rows = rows.filter(gpu__in=job.gpu_ids)
    rows = rows.select_related("gpu__node").order_by("gpu__node__name", "gpu__index")
    return [
        {
            "id": row.gpu_id,
            "label": str(row.gpu),
            "memory_total_bytes": row.gpu.memory_total_bytes or None,
        }
        for row in rows
    ]


def _page_data(job: Job, gpus: list[dict[str, object]], size: int) -> dict[str, object]:
    return {
        "job": shown_values(
            snapshots.job_facts(job) | {"failure": failure_of(job)} | _moving(job), TOLD
        ),
        "gpus": gpus,
        "log_size": size,
        "grace_seconds": _grace_seconds(),
        "in_gaps": job.backfill_id is not None,
        "urls": {
            name: reverse(f"job-{name}", args=[job.pk])
            for name in ("log", "numbers", "state", "gpus")
        },
    }


def _grace_seconds() -> int:
    """Return the seconds between SIGTERM and SIGKILL. Without a policy the default."""
    policy = SitePolicy.objects.filter(pk=1).first() or SitePolicy()
    return int(policy.stop_grace_seconds)


def _stored_log(job: Job, part: int, lines: list[str]) -> dict[str, object]:
    """Return how much of a log is stored, and what its panel says without a log.

    A node reports the end of a Job before it has uploaded the log, which takes several
    requests. It tries for KEPT_DAYS.

    Args:
        part: of a Job over several nodes.
        lines: the last lines of the Job, if there are any.
    """
    rows = [row for row in job.parts.all() if row.number == part]
    written = rows[0].log_bytes if rows else job.log_bytes
    size = log_store.size(job, part=part)
    is_awaited = (
        job.ended_at is not None
        and (size < written or (bool(lines) and not size))
        and not log_store.note(job)
        and timezone.now() - job.ended_at < timedelta(days=KEPT_DAYS)
    )
    if job.state in Job.State.live():
        words = gettext(
            "Nothing printed yet. Lines appear here as the job writes them."
        )
    elif is_awaited:
        words = gettext(
            "The node has not uploaded the log yet. It appears here once it is "
            "uploaded."
        )
    elif lines:
        words = gettext("The log was not stored. These are its last lines.")
    else:
        words = gettext("This job printed nothing.")
    return {"bytes": size, "is_awaited": is_awaited, "empty_words": words}


def failure_of(job: Job) -> dict[str, str] | None:
    """Return how a Job failed: a title, and the reason if it adds something."""
    if job.state not in FAILED:
        return None
    if job.exit_signal is not None:
        english = sentence("Ended by {signal}", signal=_signal_name(job.exit_signal))
    elif job.exit_code is not None:
        english = sentence("Exit code {code}", code=job.exit_code)
    elif job.state == Job.State.LOST:
        english = sentence("Lost")
    else:
        english = sentence("The job did not run")
    said = job.reason.strip().removeprefix(f"exit code {job.exit_code}: ")
    # The stored reason is English: "ended with exit code 1", "ended by SIGKILL".
    code = f"code {job.exit_code}"
    same = english.lower() in said.lower() or (
        job.exit_code is not None and said.endswith(code)
    )
    return {"title": translated(english), "reason": "" if same else shown(said)}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return sentence("signal {number}", number=number)


def _plan_card(stored: StoredPlan | None) -> tuple[plan_cards.PlanCard | None, str]:
    """Return a stored Plan's card and its units. None: no Plan, or an old form."""
    if stored is None:
        return None, ""
    shape = stored.spec.get("shape") or {}
    units = plan_cards.units_of(shape.get("image_tokens", 0))
    try:
        card = plan_cards.card(Plan.from_json(stored.plan), {}, units)
    except PlanInvalid:
        return None, units
    return plan_cards.with_records([card])[0], units


def _legend(card: plan_cards.PlanCard | None) -> list[tuple[str, str]]:
    """Return the legend of a stored Plan. Its "now" is in the past."""
    words = plan_cards.legend(card.bars) if card else []
    return [
        (key, gettext("in use then") if key == "used" else text) for key, text in words
    ]


@require_safe
def job_state(request: HttpRequest, pk: int) -> JsonResponse:
    """Return the facts that change while a Job runs."""
    job = _visible_job(request, pk)
    answer = snapshots.job_facts(job) | {
        "events": snapshots.job_events(job),
        "failure": failure_of(job),
        **_moving(job),
    }
    live = job.state in Job.State.live()
    lines = (
        [] if live else log_store.last_lines(job, LAST_LINES, part=_failed_part(job))
    )
    answer["log"] = _stored_log(job, _part(request, job.parts.all()), lines)
    if job.state in FAILED:
        answer["last_lines"] = lines
    return JsonResponse(shown_values(answer, TOLD))


@require_safe
def job_log(request: HttpRequest, pk: int) -> JsonResponse:
    """Return a range of the stored log: byte offset, length, text."""
    job = _visible_job(request, pk)
    asked = [
        request.GET.get(name, default)
        for name, default in (("offset", "0"), ("length", "65536"))
    ]
    if not all(_NUMBER.fullmatch(text) for text in asked):
        return JsonResponse({"detail": "offset and length are numbers"}, status=422)
    offset, length = (max(0, int(text)) for text in asked)
    piece = log_store.read(
        job,
        offset=offset,
        length=min(MOST_RANGE_BYTES, length),
        part=_part(request, job.parts.all()),
    )
    return JsonResponse(
        {
            "offset": piece.offset,
            "bytes": piece.bytes,
            "data": piece.data,
            "size": piece.size,
        }
    )


@require_safe
def job_numbers(request: HttpRequest, pk: int) -> JsonResponse:
    """Return the numbers in log and event files, thinned for a chart."""
    found = run_curves.numbers(_visible_job(request, pk))
    return JsonResponse(
        {
            "rows": found.rows,
            "left_bytes": found.left_bytes,
            "not_finite": found.not_finite,
        }
    )


@require_safe
def job_gpus(request: HttpRequest, pk: int) -> JsonResponse:
    """Return the use of the Job's Gpus while it ran, by minute."""
    job = _visible_job(request, pk)
    if job.started_at is None:
        return JsonResponse({"gpus": [], "planned_bytes": {}})
    start, end = _minutes(job.started_at, job.ended_at or timezone.now())
    shards = job.plan.plan.get("shards", []) if job.plan else []
    return JsonResponse(
        {
            "gpus": [
                gpu
                | {
                    "series": load_history(
                        int(str(gpu["id"])), start=start, end=end, points=CHART_POINTS
                    )
                }
                for gpu in _gpus(job)
            ],
            "planned_bytes": {s["gpu_label"]: s["likely_bytes"] for s in shards},
        }
    )


def _minutes(start: datetime, end: datetime) -> tuple[int, int]:
    """Return Unix seconds of the whole minutes in a span."""
    return floor(start.timestamp() / 60) * 60, ceil(end.timestamp() / 60) * 60


@require_safe
def job_log_download(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Send the whole stored log as a text file."""
    job = _visible_job(request, pk)
    path = log_store.path_of(job, part=_part(request, job.parts.all()))
    name = path.name if "." in path.stem else f"{job.pk}-{job.attempt}.log"
    name = f"job-{name}"
    if not path.is_file():
        return HttpResponse(
            "\n".join(job.last_lines),
            content_type="text/plain; charset=utf-8",
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )
    log = log_store.UpToNow(path)
    answer = FileResponse(
        log,
        as_attachment=True,
        filename=name,
        content_type="text/plain; charset=utf-8",
    )
    answer["Content-Length"] = str(log.size)
    return answer
