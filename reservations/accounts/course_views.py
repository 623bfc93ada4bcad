"""A term's course: made from a list of students in one step, ending by date."""

import hashlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.core.validators import validate_slug
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from reservations.accounts import invitation_mail, invitations, tasks
from reservations.accounts.course_csv import COLUMNS, Course, course_edits, students_of
from reservations.accounts.invitations import UNUSABLE
from reservations.accounts.logins import people
from reservations.accounts.tree import service as accounts
from reservations.accounts.tree.csv_table import SheetInvalid, read_sheet, written
from reservations.accounts.tree.draft_views import preview_of
from reservations.accounts.tree.forms import (
    LastDayField,
)
from reservations.accounts.tree.import_views import ERRORS_SHOWN, read_file
from reservations.accounts.tree.tree_edits import MOST_SHARES
from reservations.models import Account, TreeChange, User
from reservations.store.access import operator_required, reader
from reservations.web.credit_field import HoursField
from telemetry.protocol.coded_error import CodedError
from telemetry.web.error_answers import message_of
from telemetry.web.plain_forms import PlainForm

COURSES_PER_PAGE = 25


class CourseForm(PlainForm):
    """The settings of a course, and its list of students."""

    name = forms.CharField(
        max_length=63,
        validators=[validate_slug],
        label=gettext_lazy("Name, as in cs-101-2026"),
    )
    title = forms.CharField(label=gettext_lazy("Title"), max_length=120, required=False)
    parent = forms.CharField(
        max_length=63, required=False, label=gettext_lazy("Below the account")
    )
    shares = forms.IntegerField(
        label=gettext_lazy("Shares"), min_value=0, max_value=MOST_SHARES, initial=10
    )
    quota_gpu_seconds = HoursField(
        label=gettext_lazy("Quota of the course, credits in any 7 days")
    )
    member_quota_gpu_seconds = HoursField(
        label=gettext_lazy("Quota of each student, credits in any 7 days")
    )
    head = forms.CharField(
        max_length=150, required=False, label=gettext_lazy("Led by (login)")
    )
    ends_at = LastDayField(label=gettext_lazy("Last day"))
    file = forms.FileField(
        label=gettext_lazy("File"), required=False, allow_empty_file=True
    )
    text = forms.CharField(required=False, strip=False)
    digest = forms.CharField(required=False, max_length=64)

    @property
    def plain(self) -> list[forms.BoundField]:
        """Return the fields that are typed."""
        return [field for field in self if field.name not in ("file", "text", "digest")]

    def clean_ends_at(self) -> datetime:
        """Refuse a day that is over.

        Raises:
            ValidationError.
        """
        at: datetime = self.cleaned_data["ends_at"]
        if at <= timezone.now():
            raise ValidationError(gettext("This day is over."))
        return at

    def course(self) -> Course:
        """Return the requested course."""
        values = self.cleaned_data
        return Course(
            name=values["name"],
            title=values["title"],
            parent=values["parent"] or None,
            shares=values["shares"],
            ends_at=values["ends_at"],
            quota_gpu_seconds=values["quota_gpu_seconds"],
            member_quota_gpu_seconds=values["member_quota_gpu_seconds"],
            head=values["head"],
        )


@require_safe
@operator_required
def show(request: HttpRequest) -> HttpResponseBase:
    """List the courses: every Account that ends by date."""
    q = request.GET.get("q", "").strip()[:80]
    rows = Account.objects.exclude(ends_at=None).select_related("parent")
    if q:
        rows = rows.filter(Q(name__icontains=q) | Q(title__icontains=q))
    waiting = Q(
        memberships__active=True, memberships__user__password__startswith=UNUSABLE
    )
    rows = rows.annotate(
        people=Count("memberships", filter=Q(memberships__active=True)),
        new=Count("memberships", filter=waiting),
    ).order_by("archived_at", "-ends_at", "name")
    query = request.GET.copy()
    query.pop("page", None)
    return render(
        request,
        "reservations/accounts/course_list.html",
        {
            "tab": "accounts",
            "q": q,
            "query": query.urlencode(),
            "page": Paginator(rows, COURSES_PER_PAGE).get_page(request.GET.get("page")),
            "mail": invitation_mail.possible(),
        },
    )


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
def new(request: HttpRequest) -> HttpResponseBase:
    """Read the list, show a preview, then create the course."""
    if request.method != "POST":
        return _page(request, CourseForm())
    form = CourseForm(request.POST, request.FILES)
    if not form.is_valid():
        return _page(request, form, status=422)
    try:
        text = read_file(form)
        rows = read_sheet(text, known=COLUMNS, needed=())
    except SheetInvalid as error:
        return _page(request, form, status=422, errors=[message_of(error)])
    found = students_of(rows, people())
    if found.errors:
        errors = [str(error) for error in found.errors]
        return _page(request, form, status=422, errors=errors)
    edits = course_edits(form.course(), found.students)
    done = accounts.look(edits, now=timezone.now())
    if done.problems:
        return _page(request, form, status=422, errors=accounts.words_of(done))
    digest = hashlib.sha256(repr((form.course(), found.students)).encode()).hexdigest()
    more: dict[str, Any] = {"text": text, "found": found, "digest": digest}
    if form.cleaned_data["digest"] != digest:
        seen = preview_of(request, done, timezone.now())
        return _page(request, form, **more, **seen)
    try:
        accounts.save(
            edits=edits,
            actor=reader(request),
            reason=f"course {form.cleaned_data['name']}",
            now=timezone.now(),
            kind=TreeChange.Kind.COURSE,
        )
    except CodedError as error:
        return _page(request, form, status=409, errors=[message_of(error)], **more)
    made = len(found.students)
    messages.success(
        request,
        gettext(
            "Course created: %(made)s students, %(new)s of them new. Give the "
            "new ones their links below."
        )
        % {"made": made, "new": found.new},
    )
    return redirect("manage-courses")


def _page(
    request: HttpRequest,
    form: CourseForm,
    *,
    status: int = 200,
    errors: Sequence[str] = (),
    **more: Any,
) -> HttpResponse:
    page = {
        "tab": "accounts",
        "form": form,
        "errors": list(errors)[:ERRORS_SHOWN],
        "more_errors": max(len(errors) - ERRORS_SHOWN, 0),
        "columns": COLUMNS,
        "names": list(
            Account.objects.filter(archived_at=None).values_list("name", flat=True)
        ),
        **more,
    }
    return render(request, "reservations/accounts/course_new.html", page, status=status)


def _uninvited(account: Account) -> QuerySet[User]:
    """Return the active members who never chose a password."""
    return User.objects.filter(
        memberships__account=account,
        memberships__active=True,
        is_active=True,
        password__startswith=UNUSABLE,
    ).order_by("pk")


@require_POST
@operator_required
@never_cache
def invite(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Hand out fresh links for an Account's new people: as CSV, or by mail."""
    account = get_object_or_404(Account, pk=pk)
    user_ids = list(_uninvited(account).values_list("pk", flat=True))
    user = reader(request)
    if not user_ids:
        messages.info(request, gettext("Everybody in it has chosen a password."))
        return redirect("manage-courses")
    if request.POST.get("by") == "mail":
        if not invitation_mail.possible():
            messages.error(
                request,
                gettext("Mail needs EMAIL_URL and PORTAL_URL: see docs/operations.md."),
            )
            return redirect("manage-courses")
        for first in range(0, len(user_ids), invitation_mail.PER_TASK):
            some = user_ids[first : first + invitation_mail.PER_TASK]
            tasks.invite.delay_on_commit(some, user.pk)
        messages.success(
            request,
            gettext("%(count)s mails with links are being sent.")
            % {"count": len(user_ids)},
        )
        return redirect("manage-courses")
    now = timezone.now()
    made = invitations.invite(user_ids=user_ids, actor=user, now=now)
    base = request.build_absolute_uri("/")
    rows = [
        (one.username, str(one), one.email, invitation_mail.link_of(text, base))
        for one, text in made
    ]
    answer = HttpResponse(content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = f'attachment; filename="{account.name}-links.csv"'
    answer.write("\ufeff" + written(["user", "name", "mail", "link"], rows))
    return answer
