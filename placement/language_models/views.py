"""Pages of served language models: the list, the form, one of them."""

from django.conf import settings
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import require_http_methods, require_safe

from placement.jobs import service as jobs
from placement.jobs.queries import waiting_reason
from placement.jobs.views.viewer import reader, usable_reservations
from placement.language_models import queries as show
from placement.language_models.call_examples import curl_example, python_example
from placement.language_models.forms import (
    BOOK,
    CALLERS,
    RESERVATION,
    STORED,
    LanguageModelForm,
)
from placement.language_models.service import (
    LanguageModelRequest,
    serve_language_model,
    set_callers,
)
from placement.models import Job, RegisteredModel
from placement.planner.model.well_known import WELL_KNOWN
from reservations.models import User
from reservations.store.membership_rights import payers
from telemetry.protocol.coded_error import CodedError
from telemetry.web.error_answers import add_errors
from telemetry.web.recognition import shown

PAGE_ROWS = 30
MOST_STORED = 20


@require_safe
def language_model_list(request: HttpRequest) -> HttpResponse:
    """Show the language models that the User may see."""
    rows = show.language_model_endpoints(reader(request))
    page = Paginator(rows, PAGE_ROWS).get_page(request.GET.get("page"))
    facts = [(row, show.endpoint_facts(row)) for row in page]
    words = {"page": page, "rows": facts}
    return render(request, "placement/language_models/language_model_list.html", words)


@require_http_methods(["GET", "HEAD", "POST"])
def language_model_new(request: HttpRequest) -> HttpResponse:
    """Show the form that serves a language model, or its errors."""
    user = reader(request)
    posted = request.method == "POST"
    form = LanguageModelForm(
        request.POST if posted else None,
        jobs=[(str(job.pk), shown(job.name)) for job in show.trained_jobs(user)],
        known=_known(user),
        places=_places(user),
        memberships=[(str(row.pk), str(row.account)) for row in payers(user)],
        initial={"of_job": request.GET.get("job", "")},
    )
    status = 200
    if posted:
        status = 422
        if form.is_valid():
            try:
                return redirect("language-model", _serve(user, form).pk)
            except CodedError as error:
                status = add_errors(form, error)
    words = {"form": form}
    return render(
        request,
        "placement/language_models/language_model_new.html",
        words,
        status=status,
    )


@require_http_methods(["GET", "HEAD", "POST"])
def language_model_show(request: HttpRequest, pk: int) -> HttpResponse:
    """Show one language model; POST sets its callers, or stops it."""
    user, now = reader(request), timezone.now()
    row = show.language_model_endpoints(user).filter(job_id=pk).first()
    if row is None:
        raise Http404("no such language model")
    if request.method == "POST":
        if "stop" in request.POST:
            jobs.stop(job_id=pk, user=user, now=now)
        else:
            callers = request.POST.get("callers", "")
            set_callers(user=user, job_id=pk, callers=callers, now=now)
        return redirect("language-model", pk)
    facts, job = show.endpoint_facts(row), row.job
    base = request.build_absolute_uri(facts["address"])
    return render(
        request,
        "placement/language_models/language_model_show.html",
        {
            "row": row,
            "job": job,
            "facts": facts,
            "mine": job.owner_id == user.pk,
            "sees_job": user.is_operator or job.owner_id == user.pk,
            "live": job.state in Job.State.live(),
            "running": job.state == Job.State.RUNNING,
            "waits": waiting_reason(job),
            "callers": CALLERS,
            "base": base,
            "curl": curl_example(base, row.name),
            "python": python_example(base, row.name),
            "most_tokens": settings.SERVE_TOKENS_PER_MINUTE,
            "most_calls": settings.SERVE_TEXT_CALLS,
        },
    )


def _serve(user: User, form: LanguageModelForm) -> Job:
    """Serve what a valid form describes. Raises CodedError."""
    data = form.cleaned_data
    word, _, number = data["place"].partition(":")
    known, stored = data["well_known"], None
    if known.startswith(STORED):
        known, stored = "", int(known.removeprefix(STORED))
    asked = LanguageModelRequest(
        model=data["model"],
        of_job=data["of_job"],
        name=data["name"],
        well_known=known,
        spec_id=stored,
        context_tokens=data["context_tokens"],
        sequences=data["sequences"],
        precision=data["precision"],
        server=data["server"],
        environment_folder=data["environment_folder"],
        callers=data["callers"],
        reservation_id=int(number) if word == RESERVATION else None,
        hours=data["hours"] if word == BOOK else None,
    )
    memberships = user.memberships.filter(pk=data["membership"] or 0)
    payer = memberships.first() if word == BOOK else None
    return serve_language_model(
        user=user, asked=asked, membership=payer, now=timezone.now()
    )


def _places(user: User) -> list[tuple[str, str]]:
    """Return the possible places: a new booking, own reservations."""
    found = [(BOOK, gettext("book the fewest GPUs that hold it, from now"))]
    found += [
        (
            f"{RESERVATION}:{row.pk}",
            gettext("the GPUs of %(reservation)s") % {"reservation": shown(row.label)},
        )
        for row in usable_reservations(user, timezone.now())
    ]
    return found


def _known(user: User) -> list[tuple[str, str]]:
    """Return the models whose memory is known: stored ones, and well-known ones."""
    stored = RegisteredModel.objects.filter(owner=user)[:MOST_STORED]
    return [(f"{STORED}{row.pk}", shown(row.name)) for row in stored] + [
        (one.name, shown(one.title)) for one in WELL_KNOWN.values()
    ]
