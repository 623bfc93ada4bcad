"""Import and export of the tree of Accounts as CSV, with a dry run before an import."""

from collections.abc import Sequence
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods, require_safe

from reservations.accounts.csv_table import (
    MOST_BYTES,
    RowError,
    SheetInvalid,
    read_sheet,
    written,
)
from reservations.accounts.logins import people
from reservations.accounts.tree.edits_page import EditsPage, EditsRead
from reservations.accounts.tree.forms import REASON_LENGTH, SheetForm
from reservations.accounts.tree.queries import read_tree
from reservations.accounts.tree.tree_csv import COLUMNS, NEEDED, edits_of, tree_rows
from reservations.models import TreeChange
from reservations.store.access import operator_required
from reservations.web.review_page import Review
from telemetry.protocol.sentences import sentence
from telemetry.web.error_answers import message_of


class ImportForm(SheetForm):
    """The file to import, and why."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"), required=False, max_length=REASON_LENGTH
    )


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
def show(request: HttpRequest) -> HttpResponseBase:
    """Read a file, show its effects, then apply it."""
    return ImportPage(request).answer()


class ImportPage(EditsPage):
    """The rows of a file that differ from the tree."""

    template = "reservations/accounts/tree/tree_import.html"
    kind = TreeChange.Kind.IMPORT
    asks_reason = True
    reason_length = REASON_LENGTH
    problems_title = gettext_lazy("Nothing was imported.")
    save_label = gettext_lazy("Import all")

    def form_of(self, data: Any) -> ImportForm:
        """Return the form with the chosen file."""
        return ImportForm(data, self.request.FILES if data is not None else None)

    def read(self, form: Any) -> EditsRead:
        """Return the edits that make the tree equal to the file."""
        try:
            rows = read_sheet(form.cleaned_data["text"], known=COLUMNS, needed=NEEDED)
        except SheetInvalid as error:
            return EditsRead(problems=[message_of(error)])
        names = {pk: person.username for pk, person in people().items()}
        zone = timezone.get_current_timezone()
        found = edits_of(rows, read_tree(), names, zone=zone)
        return EditsRead(found.edits, _error_lines(found.errors), found)

    def saved(self, change: TreeChange, found: EditsRead) -> str:
        """Return the number of the change."""
        return sentence("Imported as change #{pk}.", pk=change.pk)

    def context(self, form: Any, review: Review | None) -> dict[str, Any]:
        """Return the columns and limits of a file as well."""
        return {
            "columns": COLUMNS,
            "most_mib": MOST_BYTES >> 20,
            **super().context(form, review),
        }


def _error_lines(errors: Sequence[RowError]) -> list[str]:
    return [str(error) for error in sorted(errors, key=lambda e: (e.row, e.column))]


@require_safe
@operator_required
def export(request: HttpRequest) -> HttpResponseBase:
    """Send the whole tree as CSV, in the form that the import reads."""
    answer = HttpResponse(content_type="text/csv; charset=utf-8")
    answer["Content-Disposition"] = 'attachment; filename="accounts.csv"'
    answer["Cache-Control"] = "no-store"
    # The mark lets spreadsheets read it as UTF-8.
    answer.write("\ufeff" + written(COLUMNS, tree_rows(read_tree(), people())))
    return answer
