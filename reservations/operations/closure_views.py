"""The operator's pages of closed time: a list, and a form with a preview."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext_lazy
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from reservations.models import Closure, Reservation
from reservations.operations import closures
from reservations.operations.closures import ClosureDraft, Preview
from reservations.operations.evacuation import EvacuatedGpus
from reservations.operations.evacuation_plan import BookingFate, EvacuationOutcome
from reservations.operations.forms import ClosureForm, ClosuresAsked
from reservations.store.access import operator_required, reader
from reservations.web.review_page import Review, ReviewPage, undo_answer
from telemetry.protocol.sentences import counted, joined, sentence
from telemetry.web.local_time_field import clock_notes
from telemetry.web.query_filters import read_filters, whole_number

ROWS_PER_PAGE = 25
WARNING = sentence(
    "Saving notifies the affected users. A booking that has not begun moves to an "
    "equal GPU if one is free. If none is free, it ends when the closure begins, or it "
    "is cancelled with a full refund and a voucher. Cancelling the closure later does "
    "not undo this."
)
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
    voucher: bool


def bookings_touched(
    reliefs: tuple[EvacuationOutcome, ...] | list[EvacuationOutcome],
    found: EvacuatedGpus,
) -> list[Touched]:
    """Return the outcomes of bookings for a table, worst first."""
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
                voucher=one.fate
                in (BookingFate.REFUNDED, BookingFate.ENDED, BookingFate.CUT),
            )
        )
    return rows


@require_safe
@operator_required
def closure_list(request: HttpRequest) -> HttpResponseBase:
    """List closures, by default the present and coming ones."""
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
def closure_form(request: HttpRequest, pk: int | None = None) -> HttpResponseBase:
    """Show the form of a closure, the bookings it affects, and save it."""
    return ClosurePage(request, pk).answer()


class ClosurePage(ReviewPage):
    """A new or an existing closure."""

    template = "reservations/operations/closure_edit.html"
    tab = "closures"
    save_label = gettext_lazy("Save and notify them")
    before_hint = gettext_lazy(
        "Preview the affected bookings first. Nothing is saved yet."
    )

    def __init__(self, request: HttpRequest, pk: int | None) -> None:
        super().__init__(request)
        self.pk = pk
        self.row = _open_closure_or_404(pk) if pk is not None else None

    def form_of(self, data: Any) -> ClosureForm:
        """Return the form with the closure as it is."""
        if data is None:
            return ClosureForm(initial=_initial(self.request, self.row))
        return ClosureForm(data)

    def review(self, form: Any) -> Review:
        """Return the bookings that the closure affects."""
        plan = closures.preview(
            draft=_draft(form.cleaned_data), now=self.now, pk=self.pk
        )
        rows = bookings_touched(plan.reliefs, plan.leaving)
        return Review(
            mark=plan.mark,
            title=touched_title(len(rows)),
            aside=counted("{n} GPU closes", "{n} GPUs close", len(plan.gpus)),
            touched=rows,
            warning=WARNING if rows else "",
            effects=clock_notes(form),
        )

    def save(self, form: Any, *, mark: str, reason: str) -> str:
        """Save the closure and move the bookings. Return a message about them."""
        kept, done = closures.save(
            draft=_draft(form.cleaned_data),
            actor=self.actor,
            now=self.now,
            mark=mark,
            pk=self.pk,
            version=form.cleaned_data["version"] if self.pk is not None else None,
        )
        return _saved_message(kept, done)

    def done(self) -> HttpResponseBase:
        """Redirect to the list."""
        return redirect("manage-closures")

    def context(self, form: Any, review: Review | None) -> dict[str, Any]:
        """Return the GPUs to choose, by node."""
        chosen = {str(value) for value in form["gpus"].value() or ()}
        nodes: dict[str, list[tuple[str, str, bool]]] = {}
        for gpu in form.fields["gpus"].queryset:
            label = f"{gpu.index} {gpu.pool.gpu_class}"
            nodes.setdefault(gpu.node.name, []).append(
                (str(gpu.pk), label, str(gpu.pk) in chosen)
            )
        return {"row": self.row, "nodes": nodes.items()}


def touched_title(count: int) -> str:
    """Return the heading of the bookings that a change affects."""
    if not count:
        return sentence("No booking is affected")
    return counted("{n} affected booking", "{n} affected bookings", count)


_COUNTED = {
    BookingFate.MOVED: sentence("{n} moved"),
    BookingFate.CUT: sentence("{n} cut"),
    BookingFate.ENDED: sentence("{n} ended"),
    BookingFate.REFUNDED: sentence("{n} refunded"),
}


def _saved_message(kept: Closure, done: Preview) -> str:
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


def _open_closure_or_404(pk: int) -> Closure:
    row = Closure.objects.filter(pk=pk, cancelled_at=None).first()
    if row is None or row.end <= timezone.now():
        raise Http404
    return row


@require_POST
@operator_required
def end(request: HttpRequest, pk: int) -> HttpResponseBase:
    """End the closure. Moved and refunded bookings stay as they are."""
    version = request.POST.get("version", "")

    def act() -> str:
        row = closures.cancel(
            pk=pk,
            version=whole_number(version),
            actor=reader(request),
            now=timezone.now(),
        )
        return sentence(
            "{kind} ended: the time can be booked again. Bookings that it moved or "
            "refunded are not changed back.",
            kind=row.get_kind_display(),
        )

    return undo_answer(request, act, "manage-closures")
