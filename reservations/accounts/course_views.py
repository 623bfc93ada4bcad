"""A term's course: created from a list of students in one step, ended by date."""

from datetime import datetime
from typing import Any

from django import forms
from django.conf import settings
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
from reservations.accounts.csv_table import SheetInvalid, read_sheet, written
from reservations.accounts.invitations import UNUSABLE
from reservations.accounts.logins import people, unix_users
from reservations.accounts.tree.edits_page import EditsPage, EditsRead
from reservations.accounts.tree.forms import LastDayField, SheetForm
from reservations.accounts.tree.tree_edits import MOST_SHARES
from reservations.models import Account, TreeChange, User
from reservations.store.access import operator_required, reader
from reservations.web.credit_field import HoursField
from reservations.web.review_page import Review
from telemetry.protocol.sentences import sentence
from telemetry.web.error_answers import message_of

COURSES_PER_PAGE = 25


class CourseForm(SheetForm):
    """The settings of a course, and its list of students."""

    name = forms.CharField(
        max_length=63,
        validators=[validate_slug],
        label=gettext_lazy("Name, as in cs-101-2026"),
    )
    title = forms.CharField(label=gettext_lazy("Title"), max_length=120, required=False)
    parent = forms.CharField(
        max_length=63, required=False, label=gettext_lazy("Parent group")
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
        max_length=150, required=False, label=gettext_lazy("Group head (user name)")
    )
    ends_at = LastDayField(label=gettext_lazy("Last day"))

    @property
    def plain(self) -> list[forms.BoundField]:
        """Return the fields that the user fills in."""
        return [field for field in self if field.name not in ("file", "text")]

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
    """List the courses: every Account that has an end."""
    q = request.GET.get("q", "").strip()[:80]
    rows = Account.objects.exclude(ends_at=None).select_related("parent")
    if q:
        rows = rows.filter(Q(name__icontains=q) | Q(title__icontains=q))
    cannot_sign_in = User.objects.filter(password__startswith=UNUSABLE, identities=None)
    waiting = Q(memberships__active=True, memberships__user__in=cannot_sign_in)
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
            "passwords": settings.LOGIN_SETTINGS.passwords,
        },
    )


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
def new(request: HttpRequest) -> HttpResponseBase:
    """Read the list, show a preview, then create the course."""
    return CoursePage(request).answer()


class CoursePage(EditsPage):
    """A new course with its students."""

    template = "reservations/accounts/course_new.html"
    kind = TreeChange.Kind.COURSE
    problems_title = gettext_lazy("The course was not created.")
    save_label = gettext_lazy("Create course")

    def form_of(self, data: Any) -> CourseForm:
        """Return the form with the chosen list."""
        return CourseForm(data, self.request.FILES if data is not None else None)

    def read(self, form: Any) -> EditsRead:
        """Return the edits that make the course; find each student's login."""
        try:
            rows = read_sheet(form.cleaned_data["text"], known=COLUMNS, needed=())
        except SheetInvalid as error:
            return EditsRead(problems=[message_of(error)])
        found = students_of(rows, people(), unix_users())
        if found.errors:
            return EditsRead(problems=[str(error) for error in found.errors])
        return EditsRead(course_edits(form.course(), found.students), source=found)

    def save(self, form: Any, *, mark: str, reason: str) -> str:
        """Create the course; its name is the reason."""
        reason = f"course {form.cleaned_data['name']}"
        return super().save(form, mark=mark, reason=reason)

    def saved(self, change: TreeChange, found: EditsRead) -> str:
        """Return how many students it has."""
        return sentence(
            "Course created: {made} students, {new} of them new. Give the new ones "
            "their links below.",
            made=len(found.source.students),
            new=found.source.new,
        )

    def done(self) -> HttpResponseBase:
        """Return to the courses, where the links are."""
        return redirect("manage-courses")

    def context(self, form: Any, review: Review | None) -> dict[str, Any]:
        """Return the columns of a list and the Accounts to choose from as well."""
        current = Account.objects.filter(archived_at=None)
        return {
            "columns": COLUMNS,
            "names": list(current.values_list("name", flat=True)),
            **super().context(form, review),
        }


def _members_without_password(account: Account) -> QuerySet[User]:
    """Return the active members who cannot sign in yet."""
    return User.objects.filter(
        memberships__account=account,
        memberships__active=True,
        is_active=True,
        password__startswith=UNUSABLE,
        identities=None,
    ).order_by("pk")


@require_POST
@operator_required
@never_cache
def invite(request: HttpRequest, pk: int) -> HttpResponseBase:
    """Create new links for an Account's new people, as CSV or by mail."""
    account = get_object_or_404(Account, pk=pk)
    user_ids = list(_members_without_password(account).values_list("pk", flat=True))
    user = reader(request)
    if not settings.LOGIN_SETTINGS.passwords:
        messages.error(
            request,
            gettext(
                "This site has no passwords. People sign in with the login of the "
                "university."
            ),
        )
        return redirect("manage-courses")
    if not user_ids:
        messages.info(request, gettext("Everybody in it can sign in."))
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
