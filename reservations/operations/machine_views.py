"""The operator's pages for acts on many Gpus, replacing one, and draining nodes."""

from itertools import chain
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from reservations.operations import gpu_replacement, pools
from reservations.operations.bulk_acts import ACTS, ActInfo, BulkAct
from reservations.operations.closure_views import bookings_touched, touched_title
from reservations.operations.forms import (
    REASON_LENGTH,
    ActForm,
    DrainForm,
    GateForm,
    GpusAsked,
    ReplaceForm,
)
from reservations.operations.replacement_rules import WORDS, Carry
from reservations.rules.errors import NotFound
from reservations.store.access import operator_required, reader
from reservations.store.gpu_rows import OUT_FIELDS, unavailable_reason
from reservations.web.review_page import Review, ReviewPage
from telemetry.models import Gpu, Node, Pool
from telemetry.protocol.coded_error import CodedError
from telemetry.protocol.sentences import counted, joined, sentence
from telemetry.web.error_answers import message_of
from telemetry.web.query_filters import read_filters

ROWS_PER_PAGE = 50
ORDER = {
    "gpu": ("node__name", "index", "pk"),
    "pool": ("pool__gpu_class", "node__name", "index", "pk"),
    "memory": ("-memory_total_bytes", "node__name", "index", "pk"),
}
OUT = Q(maintenance=True) | Q(node__maintenance=True) | Q(lost=True) | Q(mig=True)
DRAINS = Q(draining=True) | Q(node__draining=True)


@require_safe
@operator_required
def gpus(request: HttpRequest) -> HttpResponseBase:
    """List Gpus, to choose many of them."""
    return _list(request, ActForm())


def _list(request: HttpRequest, form: ActForm, *, status: int = 200) -> HttpResponse:
    asked = read_filters(GpusAsked, request.GET)
    values = asked.values
    page = Paginator(_wanted(values), ROWS_PER_PAGE).get_page(values.get("page"))
    rows = [
        (
            gpu,
            unavailable_reason(
                present=gpu.present, out=[_value(gpu, n) for n in OUT_FIELDS]
            ),
        )
        for gpu in page
    ]
    query = {k: v for k, v in request.GET.items() if k != "page" and v}
    context = {
        "tab": "pools",
        "asked": asked,
        "gpus": page,
        "rows": rows,
        "form": form,
        "nodes": Node.objects.in_service().order_by("name"),
        "pools": Pool.objects.all(),
        "acts": ACTS.items(),
        "query": urlencode(query),
        "chosen": {str(value) for value in form["gpus"].value() or ()},
    }
    return render(
        request, "reservations/operations/gpu_list.html", context, status=status
    )


def _value(gpu: Gpu, name: str) -> bool:
    if name.startswith("node__"):
        return bool(getattr(gpu.node, name.removeprefix("node__")))
    return bool(getattr(gpu, name))


def _wanted(values: dict[str, Any]) -> QuerySet[Gpu]:
    rows = Gpu.objects.filter(retired=False).select_related(
        "node", "pool", "replaced_by__node"
    )
    if values.get("node"):
        rows = rows.filter(node_id=values["node"])
    if values.get("pool"):
        rows = rows.filter(pool_id=values["pool"])
    state = values.get("state")
    if state == "open":
        rows = rows.filter(pk__in=Gpu.objects.bookable().values("pk"))
    elif state == "draining":
        rows = rows.filter(DRAINS)
    elif state == "out":
        rows = rows.filter(OUT)
    elif state == "missing":
        rows = rows.filter(present=False)
    if q := (values.get("q") or "").strip():
        rows = rows.filter(
            Q(name__icontains=q) | Q(node__name__icontains=q) | Q(uuid__icontains=q)
        )
    return rows.order_by(*ORDER[values.get("sort") or "gpu"])


@require_POST
@operator_required
def act(request: HttpRequest) -> HttpResponseBase:
    """Review the effects of an act on many Gpus, then carry it out."""
    form = ActForm(request.POST)
    if form.is_valid() and form.cleaned_data["act"] == "maintenance":
        chosen = urlencode([("gpus", gpu.pk) for gpu in form.cleaned_data["gpus"]])
        return redirect(f"{reverse('manage-closure-new')}?{chosen}")
    return ActPage(request).answer()


class ActPage(ReviewPage):
    """One act on many Gpus, chosen in the list of Gpus."""

    template = "reservations/operations/gpu_act.html"
    tab = "pools"
    asks_reason = True
    reason_length = REASON_LENGTH

    def form_of(self, data: Any) -> ActForm:
        """Return the form of the list."""
        return ActForm(data)

    def review(self, form: Any) -> Review:
        """Return the bookings on the Gpus; a drain can move them."""
        plan = pools.preview_act(**_chosen(form), now=self.now)
        rows = bookings_touched(plan.reliefs, plan.found)
        drains = form.cleaned_data["act"] == BulkAct.DRAIN
        return Review(
            mark=plan.mark,
            title=touched_title(len(rows)),
            touched=rows if drains else (),
            warning=sentence("They are not changed.") if rows and not drains else "",
        )

    def save(self, form: Any, *, mark: str, reason: str) -> str:
        """Do it; say how many Gpus changed and how many bookings moved."""
        done = pools.act_on_gpus(
            **_chosen(form),
            actor=self.actor,
            now=self.now,
            reason=reason,
            move_booked=form.cleaned_data["move_booked"],
            mark=mark,
        )
        changed = sentence(
            "{act}: {n} GPUs changed.", act=_info(form).label, n=done.changed
        )
        moved = sentence(
            "{moved} bookings moved, {stay} stay.", moved=done.moved, stay=done.stay
        )
        return joined([changed, moved if done.moved else ""])

    def done(self) -> HttpResponseBase:
        """Redirect to the list of Gpus."""
        return redirect("manage-gpus")

    def page(
        self,
        form: Any,
        review: Review | None = None,
        *,
        problem: str = "",
        status: int = 200,
    ) -> HttpResponse:
        """Return the review, or the list with the faults of the form."""
        if review is None:
            return _list(self.request, form, status=status)
        return super().page(form, review, problem=problem, status=status)

    def context(self, form: Any, review: Review | None) -> dict[str, Any]:
        """Return the act, its Gpus and its Pool. The list has the preview's button."""
        drains = form.cleaned_data["act"] == BulkAct.DRAIN
        return {
            "act": _info(form),
            "drains": drains,
            "gpus": form.cleaned_data["gpus"].select_related("node", "pool"),
            "pool": form.cleaned_data["pool"],
            "hide_preview": True,
            "save_label": _info(form).label,
            "reason_hint": sentence(
                "Everybody sees it on the board and in the calendar."
            )
            if drains
            else "",
        }


def _info(form: Any) -> ActInfo:
    return ACTS[BulkAct(form.cleaned_data["act"])]


def _chosen(form: Any) -> dict[str, Any]:
    values = form.cleaned_data
    return {
        "act": values["act"],
        "gpu_ids": [gpu.pk for gpu in values["gpus"]],
        "pool_id": values["pool"].pk if values["pool"] else None,
    }


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
def replace(request: HttpRequest) -> HttpResponseBase:
    """Preview the replacement of a Gpu, and carry it out."""
    return ReplacePage(request).answer()


class ReplacePage(ReviewPage):
    """The replacement of one Gpu by another."""

    template = "reservations/operations/gpu_replace.html"
    tab = "pools"
    save_label = gettext_lazy("Replace and notify them")
    before_hint = gettext_lazy("Preview the affected bookings first.")
    after_hint = gettext_lazy("This is what happens now. Nothing is saved yet.")

    def form_of(self, data: Any) -> ReplaceForm:
        """Return the form, with the Gpu of the address chosen."""
        if data is not None:
            return ReplaceForm(data)
        old = self.request.GET.get("old", "")
        chosen = old.isdecimal() and len(old) < 19
        return ReplaceForm(initial={"old": int(old)} if chosen else {})

    def review(self, form: Any) -> Review:
        """Return the bookings that move along."""
        plan = gpu_replacement.preview(**_pair(form), now=self.now)
        return Review(mark=plan.mark, plan=plan)

    def save(self, form: Any, *, mark: str, reason: str) -> str:
        """Replace it. Return a message with the number of moved bookings."""
        done = gpu_replacement.replace(
            **_pair(form),
            actor=self.actor,
            now=self.now,
            reason=form.cleaned_data["reason"],
            mark=mark,
        )
        went = sum(one.what is Carry.CARRIED for one in done.carried)
        return counted(
            "{new} replaces {old}. {n} booking moved. {stay} not changed.",
            "{new} replaces {old}. {n} bookings moved. {stay} not changed.",
            went,
            new=done.new.label,
            old=done.old.label,
            stay=len(done.carried) - went,
        )

    def done(self) -> HttpResponseBase:
        """Redirect to the list of Gpus."""
        return redirect("manage-gpus")

    def context(self, form: Any, review: Review | None) -> dict[str, Any]:
        """Return each booking with its outcome."""
        if review is None:
            return {}
        plan = review.plan
        rows = [
            (plan.rows[one.pk], one, WORDS[one.what], one.what is Carry.CARRIED)
            for one in plan.carried
        ]
        return {"plan": plan, "rows": rows}


def _pair(form: Any) -> dict[str, int]:
    values = form.cleaned_data
    return {"old_id": values["old"].pk, "new_id": values["new"].pk}


@require_POST
@operator_required
def gate(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Set the mode of a Node's device gate."""
    form = GateForm(request.POST)
    if not form.is_valid():
        messages.error(request, gettext("Choose a mode from the list."))
        return redirect("manage-pools")
    try:
        changed = pools.set_gate(
            node_id=pk,
            mode=form.cleaned_data["mode"],
            actor=reader(request),
            now=timezone.now(),
        )
    except NotFound as missing:
        raise Http404 from missing
    messages.success(
        request,
        gettext("Saved. The node’s page shows when its gate has changed.")
        if changed
        else gettext("Nothing was changed."),
    )
    return redirect("manage-pools")


@require_POST
@operator_required
def drain(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Drain a Node, or end its drain."""
    form = DrainForm(request.POST)
    if not form.is_valid():
        for text in dict.fromkeys(chain.from_iterable(form.errors.values())):
            messages.error(request, str(text))
        return redirect("manage-pools")
    try:
        changed = pools.drain_node(
            node_id=pk,
            draining=form.cleaned_data["draining"],
            actor=reader(request),
            now=timezone.now(),
            reason=form.cleaned_data["reason"],
        )
    except NotFound as missing:
        raise Http404 from missing
    except CodedError as error:
        messages.error(request, message_of(error))
        return redirect("manage-pools")
    messages.success(
        request, gettext("Saved.") if changed else gettext("Nothing was changed.")
    )
    return redirect("manage-pools")
