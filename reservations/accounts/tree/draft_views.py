"""Show the effects of the collected edits, then save all of them or none."""

from collections.abc import Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from reservations.accounts.tree import tree_draft
from reservations.accounts.tree.edits_page import EditsPage, EditsRead
from reservations.accounts.tree.forms import REASON_LENGTH, ReasonForm
from reservations.accounts.tree.tree_edits import Edit
from reservations.accounts.tree.tree_text import Names
from reservations.models import TreeChange
from reservations.store.access import operator_required
from reservations.web.review_page import Review
from telemetry.protocol.sentences import sentence


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
def show(request: HttpRequest) -> HttpResponseBase:
    """Show the effects of the collected edits. Save all of them or none."""
    if request.method == "POST" and not tree_draft.drafted(request):
        messages.info(request, gettext("The draft is empty."))
        return redirect("manage-accounts")
    return DraftPage(request).answer()


class DraftPage(EditsPage):
    """The collected edits."""

    template = "reservations/accounts/tree/tree_draft.html"
    asks_reason = True
    reviews_at_once = True
    save_label = gettext_lazy("Apply all")
    reason_length = REASON_LENGTH
    stale = sentence("The draft has changed in the meantime. Check it again.")

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(request)
        self.edits = tree_draft.drafted(request)

    def form_of(self, data: Any) -> ReasonForm:
        """Return the form for the reason."""
        return ReasonForm(data)

    def read(self, form: Any) -> EditsRead:
        """Return the collected edits."""
        return EditsRead(self.edits)

    def saved(self, change: TreeChange, found: EditsRead) -> str:
        """Empty the draft; return the number of the change."""
        tree_draft.forget(self.request)
        return sentence(
            "Saved as change #{number}. It can be undone below.", number=change.pk
        )

    def context(self, form: Any, review: Review | None) -> dict[str, Any]:
        """Return the edits one by one, and their effects."""
        edits = list(enumerate(_called(self.edits)))
        return {"edits": edits, **super().context(form, review)}


def _called(edits: Sequence[Edit]) -> list[str]:
    """Return a name of each edited row."""
    rows = [(edit.table, edit.pk) for edit in edits if edit.pk is not None]
    names = Names.stored(rows, ())
    return [
        edit.display_name if edit.pk is None else names.of(edit.table, edit.pk)
        for edit in edits
    ]


@require_POST
@operator_required
def drop(request: HttpRequest) -> HttpResponseBase:
    """Discard one collected edit, or all of them."""
    edits = tree_draft.drafted(request)
    number = request.POST.get("edit", "")
    if number.isdecimal() and len(number) < 5 and int(number) < len(edits):
        del edits[int(number)]
        tree_draft.keep(request, edits)
    elif number == "all":
        tree_draft.forget(request)
    return redirect(
        "manage-draft" if tree_draft.drafted(request) else "manage-accounts"
    )
