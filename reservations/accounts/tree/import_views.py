"""The tree of Accounts as CSV, out and in: a dry run first, then all or nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import require_http_methods, require_safe

from reservations.accounts.logins import people
from reservations.accounts.tree import service as accounts
from reservations.accounts.tree.csv_table import (
    MOST_BYTES,
    RowError,
    SheetInvalid,
    decoded,
    read_sheet,
    written,
)
from reservations.accounts.tree.draft_views import preview_of
from reservations.accounts.tree.queries import read_tree
from reservations.accounts.tree.tree_csv import COLUMNS, NEEDED, edits_of, tree_rows
from reservations.accounts.tree.tree_edits import Edit, Edited, TreeStale
from reservations.models import TreeChange
from reservations.rules.review import mark_of
from reservations.store.access import operator_required, reader
from telemetry.protocol.coded_error import CodedError
from telemetry.web.error_answers import message_of
from telemetry.web.plain_forms import PlainForm

ERRORS_SHOWN = 100


@dataclass(frozen=True)
class DryRun:
    """The effects of a file, or its problems."""

    edits: Sequence[Edit]
    errors: list[str]
    same: int
    done: Edited | None

    @property
    def digest(self) -> str:
        """Return what tells whether the tree below the edits is still the same."""
        return mark_of([(edit.table, edit.pk, edit.version) for edit in self.edits])


def dry_run(text: str, *, now: datetime) -> DryRun:
    """Compare a file with the tree; nothing is written.

    Raises:
        SheetInvalid: it is no such table.
    """
    rows = read_sheet(text, known=COLUMNS, needed=NEEDED)
    names = {pk: person.username for pk, person in people().items()}
    found = edits_of(rows, read_tree(), names, zone=timezone.get_current_timezone())
    if found.errors:
        return DryRun(found.edits, _lines(found.errors), found.same, None)
    done = accounts.look(found.edits, now=now)
    return DryRun(found.edits, accounts.words_of(done), found.same, done)


def _lines(errors: Sequence[RowError]) -> list[str]:
    return [str(error) for error in sorted(errors, key=lambda e: (e.row, e.column))]


class ImportForm(PlainForm):
    """A file, or the text of one that was looked at before."""

    file = forms.FileField(
        label=gettext_lazy("File"), required=False, allow_empty_file=True
    )
    text = forms.CharField(required=False, strip=False)
    digest = forms.CharField(required=False, max_length=64)
    reason = forms.CharField(
        label=gettext_lazy("Reason"), required=False, max_length=100
    )


def read_file(form: forms.Form) -> str:
    """Return the text of the file, or of the one looked at before.

    Raises:
        SheetInvalid: none, too large, or no Unicode.
    """
    file: UploadedFile | None = form.cleaned_data.get("file")
    if file is not None:
        if (file.size or 0) > MOST_BYTES:
            raise SheetInvalid(
                why=gettext("it is larger than %(most)s MiB")
                % {"most": MOST_BYTES >> 20}
            )
        return decoded(file.read())
    text = str(form.cleaned_data.get("text") or "")
    if not text:
        raise SheetInvalid(why=gettext("no file was chosen"))
    return text


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
def show(request: HttpRequest) -> HttpResponseBase:
    """Read a file, show its effects, then apply it."""
    if request.method != "POST":
        return _page(request)
    now = timezone.now()
    form = ImportForm(request.POST, request.FILES)
    form.is_valid()
    try:
        text = read_file(form)
        run = dry_run(text, now=now)
    except SheetInvalid as error:
        return _page(request, status=422, errors=[message_of(error)])
    asked = form.cleaned_data
    if run.errors or not asked.get("digest"):
        return _page(request, status=422 if run.errors else 200, run=run, text=text)
    if not asked.get("reason"):
        why = [gettext("Give a reason. It is kept in the history and the audit log.")]
        return _page(request, status=422, run=run, text=text, errors=why)
    try:
        if asked["digest"] != run.digest:
            raise TreeStale(what=gettext("The tree"))
        change = accounts.save(
            edits=run.edits,
            actor=reader(request),
            reason=asked["reason"],
            now=now,
            kind=TreeChange.Kind.IMPORT,
        )
    except CodedError as error:
        return _page(
            request, status=409, run=run, text=text, errors=[message_of(error)]
        )
    messages.success(
        request, gettext("Imported as change #%(pk)s.") % {"pk": change.pk}
    )
    return redirect("manage-changes")


def _page(
    request: HttpRequest,
    *,
    status: int = 200,
    run: DryRun | None = None,
    text: str = "",
    errors: Sequence[str] = (),
) -> HttpResponse:
    found = [*errors, *(run.errors if run else [])]
    page: dict[str, Any] = {
        "tab": "accounts",
        "run": run,
        "text": text,
        "errors": found[:ERRORS_SHOWN],
        "more_errors": max(len(found) - ERRORS_SHOWN, 0),
        "columns": COLUMNS,
        "most_mib": MOST_BYTES >> 20,
    }
    if run is not None and run.done is not None and not run.errors:
        page |= preview_of(request, run.done, timezone.now())
    return render(
        request, "reservations/accounts/tree/tree_import.html", page, status=status
    )


@require_safe
@operator_required
def export(request: HttpRequest) -> HttpResponseBase:
    """Send the whole tree as CSV: what the import takes back."""
    answer = HttpResponse(content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = 'attachment; filename="accounts.csv"'
    answer["Cache-Control"] = "no-store"
    # The mark lets spreadsheets read it as UTF-8.
    answer.write("\ufeff" + written(COLUMNS, tree_rows(read_tree(), people())))
    return answer
