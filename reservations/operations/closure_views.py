"""The operator's pages of closed time: a list, and a form that looks first."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from reservations.models import Closure, Reservation
from reservations.notifications.text.closure_text import ClosureInvalid, PreviewStale
from reservations.operations import closures
from reservations.operations.closures import ClosureDraft, Preview
from reservations.operations.evacuation import EvacuatedGpus
from reservations.operations.evacuation_plan import BookingFate, EvacuationOutcome
from reservations.operations.forms import ClosureForm, ClosuresAsked
from reservations.rules.errors import BookingError, NotFound
from reservations.store.access import operator_required, reader
from telemetry.protocol.sentences import joined, sentence
from telemetry.web.query_filters import read_filters, whole_number

ROWS_PER_PAGE = 25
FATES = {
    BookingFate.MOVED: ("arrow-right", sentence("moves to")),
    BookingFate.CUT: ("clock", sentence("ends earlier")),
    BookingFate.ENDED: ("clock", sentence("ends now")),
    BookingFate.REFUNDED: ("refunded", sentence("cancelled with full refund")),
    BookingFate.STAYS: ("lock", sentence("stays")),
}


@dataclass(frozen=True)
class Touched:
    """One affected booking and what happens to it, in words."""

    row: Reservation
    gpus: str
    fate: str
    symbol: str
    words: str
    to: str
    until: datetime | None
    back_gpu_seconds: int
    token: bool


def touched(
    reliefs: tuple[EvacuationOutcome, ...] | list[EvacuationOutcome],
    found: EvacuatedGpus,
) -> list[Touched]:
    """Return what becomes of bookings as a table shows it, worst first."""
    order = [
        BookingFate.REFUNDED,
        BookingFate.ENDED,
        BookingFate.CUT,
        BookingFate.MOVED,
        BookingFate.STAYS,
    ]
    rows = []
    for one in sorted(reliefs, key=lambda r: (order.index(r.fate), r.pk)):
        symbol, words = FATES[one.fate]
        booked = next(b for b in found.booked if b.pk == one.pk)
        rows.append(
            Touched(
                row=found.rows[one.pk],
                gpus=", ".join(gpu.label for gpu in booked.gpus),
                fate=one.fate.value,
                symbol=symbol,
                words=words,
                to=", ".join(found.gpus[new].label for _old, new in one.moves),
                until=one.until,
                back_gpu_seconds=one.back_gpu_seconds,
                token=one.fate
                in (BookingFate.REFUNDED, BookingFate.ENDED, BookingFate.CUT),
            )
        )
    return rows


@require_safe
@operator_required
def listed(request: HttpRequest) -> HttpResponseBase:
    """List closures: those that stand, unless others are asked for."""
    now = timezone.now()
    asked = read_filters(ClosuresAsked, request.GET)
    rows = _wanted(asked.values, now)
    page = Paginator(rows, ROWS_PER_PAGE).get_page(asked.values.get("page"))
    query = {k: v for k, v in request.GET.items() if k != "page" and v}
    context = {
        "tab": "closures",
        "asked": asked,
        "closures": page,
        "now": now,
        "kinds": Closure.Kind.choices,
        "query": urlencode(query),
    }
    return render(request, "reservations/operations/closure_list.html", context)


def _wanted(values: dict[str, Any], now: datetime) -> QuerySet[Closure]:
    rows = Closure.objects.select_related("node", "pool", "account", "created_by")
    rows = rows.prefetch_related("gpus__node")
    over = Q(end__lte=now) | Q(cancelled_at__isnull=False)
    show = values.get("show") or "standing"
    if show == "standing":
        rows = rows.exclude(over)
    elif show == "over":
        rows = rows.filter(over).order_by("-start", "-pk")
    if values.get("kind"):
        rows = rows.filter(kind=values["kind"])
    if q := (values.get("q") or "").strip():
        rows = rows.filter(
            Q(reason__icontains=q)
            | Q(node__name__icontains=q)
            | Q(pool__gpu_class__icontains=q)
            | Q(account__name__icontains=q)
        )
    return rows


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
def one(request: HttpRequest, pk: int | None = None) -> HttpResponseBase:
    """Show the form of a new or an existing closure; look; save what was looked at."""
    row = _standing(pk) if pk is not None else None
    if request.method != "POST":
        return _form(request, ClosureForm(initial=_initial(request, row)), row)
    form = ClosureForm(request.POST)
    if not form.is_valid():
        return _form(request, form, row, status=422)
    draft = _draft(form.cleaned_data)
    now = timezone.now()
    try:
        if "save" in request.POST:
            kept, done = closures.save(
                draft=draft,
                actor=reader(request),
                now=now,
                seen=request.POST.get("seen", "")[:64],
                pk=pk,
                version=form.cleaned_data["version"] if pk is not None else None,
            )
            messages.success(request, _said(kept, done))
            return redirect("manage-closures")
        plan = closures.preview(draft=draft, now=now, pk=pk)
    except ClosureInvalid as invalid:
        for field, text in invalid.wrong.items():
            form.add_error(field, text)
        return _form(request, form, row, status=422)
    except PreviewStale as stale:
        plan = closures.preview(draft=draft, now=now, pk=pk)
        return _form(request, form, row, plan=plan, problem=stale.text(), status=409)
    except NotFound as missing:
        raise Http404 from missing
    except BookingError as error:
        zone = timezone.get_current_timezone()
        return _form(request, form, row, problem=error.text(zone), status=409)
    return _form(request, form, row, plan=plan)


_COUNTED = {
    BookingFate.MOVED: sentence("{n} moved"),
    BookingFate.CUT: sentence("{n} cut"),
    BookingFate.ENDED: sentence("{n} ended"),
    BookingFate.REFUNDED: sentence("{n} refunded"),
}


def _said(kept: Closure, done: Preview) -> str:
    counts = {fate: sum(r.fate is fate for r in done.reliefs) for fate in BookingFate}
    told = [
        sentence(template, n=counts[fate])
        for fate, template in _COUNTED.items()
        if counts[fate]
    ]
    saved = sentence("{kind} saved.", kind=kept.get_kind_display())
    if not told:
        return saved
    who = sentence(
        "Bookings: {counts}. The affected users are notified.",
        counts=joined(told, by=", "),
    )
    return joined([saved, who])


def _form(
    request: HttpRequest,
    form: ClosureForm,
    row: Closure | None,
    *,
    plan: Preview | None = None,
    problem: str = "",
    status: int = 200,
) -> HttpResponse:
    chosen = {str(value) for value in form["gpus"].value() or ()}
    nodes: dict[str, list[tuple[str, str, bool]]] = {}
    for gpu in form.fields["gpus"].queryset:  # type: ignore[attr-defined]
        label = f"{gpu.index} {gpu.pool.gpu_class}"
        nodes.setdefault(gpu.node.name, []).append(
            (str(gpu.pk), label, str(gpu.pk) in chosen)
        )
    context = {
        "tab": "closures",
        "form": form,
        "row": row,
        "nodes": nodes.items(),
        "plan": plan,
        "touched": touched(plan.reliefs, plan.leaving) if plan else [],
        "problem": problem,
    }
    return render(
        request, "reservations/operations/closure_edit.html", context, status=status
    )


def _initial(request: HttpRequest, row: Closure | None) -> dict[str, Any]:
    if row is not None:
        values = {
            name: getattr(row, name)
            for name in ("kind", "reason", "start", "end", "scope", "version")
        }
        for name in ("account", "node", "pool"):
            values[name] = getattr(row, f"{name}_id")
        return values | {"gpus": list(row.gpus.values_list("pk", flat=True))}
    chosen = [whole_number(pk) for pk in request.GET.getlist("gpus")[:1000]]
    chosen = [pk for pk in chosen if pk]
    kind = request.GET.get("kind", "")
    return {
        "kind": kind if kind in Closure.Kind.values else Closure.Kind.MAINTENANCE,
        "scope": Closure.Scope.GPUS if chosen else Closure.Scope.NODE,
        "gpus": chosen,
    }


def _draft(values: dict[str, Any]) -> ClosureDraft:
    scope = values["scope"]
    picked = {
        name: values[name].pk if values[name] else None
        for name in ("account", "node", "pool")
    }
    return ClosureDraft(
        kind=values["kind"],
        scope=scope,
        start=values["start"],
        end=values["end"],
        reason=values["reason"],
        gpu_ids=tuple(gpu.pk for gpu in values["gpus"]) if scope == "gpus" else (),
        node_id=picked["node"] if scope == "node" else None,
        pool_id=picked["pool"] if scope == "pool" else None,
        account_id=picked["account"],
    )


def _standing(pk: int) -> Closure:
    row = Closure.objects.filter(pk=pk, cancelled_at=None).first()
    if row is None or row.end <= timezone.now():
        raise Http404
    return row


@require_POST
@operator_required
def end(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Give the time back to booking; what was moved or refunded stays so."""
    version = request.POST.get("version", "")
    try:
        row = closures.cancel(
            pk=pk,
            version=whole_number(version),
            actor=reader(request),
            now=timezone.now(),
        )
    except NotFound as missing:
        raise Http404 from missing
    except BookingError as error:
        messages.error(request, error.text(timezone.get_current_timezone()))
        return redirect("manage-closures")
    messages.success(
        request,
        sentence(
            "{kind} ended: the time can be booked again. Bookings that it moved or "
            "refunded are not changed back.",
            kind=row.get_kind_display(),
        ),
    )
    return redirect("manage-closures")
