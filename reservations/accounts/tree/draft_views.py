"""What the collected edits would do; then all of them are saved, or none."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils.translation import gettext, gettext_lazy
from django.views.decorators.http import require_http_methods, require_POST

from reservations.accounts.tree import service as accounts
from reservations.accounts.tree import tree_draft
from reservations.accounts.tree.forms import REASON_LENGTH, ReasonForm
from reservations.accounts.tree.outlook_queries import Outlook, outlook
from reservations.accounts.tree.tree_edits import Edit, Edited
from reservations.accounts.tree.tree_outlook import Moved
from reservations.accounts.tree.tree_text import FIELD_WORDS, Names, value_words
from reservations.accounts.tree.tree_undo import changed_fields
from reservations.rules.review import PreviewStale, mark_of
from reservations.store.access import operator_required
from reservations.store.booking_facts import site_policy
from reservations.web.review_page import Review, ReviewPage
from telemetry.protocol.sentences import sentence

ROWS_PER_PAGE = 25


@dataclass(frozen=True)
class MovedRow:
    """One row of the table before -> after."""

    name: str
    account: bool
    moved: Moved


@dataclass(frozen=True)
class EditRow:
    """One changed row in words: (field, before, after)."""

    name: str
    fields: list[tuple[str, str, str]]
    new: bool


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
def show(request: HttpRequest) -> HttpResponseBase:
    """Show what the collected edits would do; save all of them or none."""
    if request.method == "POST" and not tree_draft.drafted(request):
        messages.info(request, gettext("The draft is empty."))
        return redirect("manage-accounts")
    return DraftPage(request).answer()


class DraftPage(ReviewPage):
    """The collected edits."""

    template = "reservations/accounts/tree/tree_draft.html"
    tab = "accounts"
    asks_reason = True
    reviews_at_once = True
    save_label = gettext_lazy("Apply all")
    reason_length = REASON_LENGTH

    def __init__(self, request: HttpRequest) -> None:
        super().__init__(request)
        self.edits = tree_draft.drafted(request)

    def form_of(self, data: Any) -> ReasonForm:
        """Return the form of the reason."""
        return ReasonForm(data)

    def review(self, form: Any) -> Review:
        """Return what the edits do to shares and ranks."""
        plan = preview(self.request, self.edits, self.now)
        mark = mark_of([edit.to_json() for edit in self.edits])
        return Review(mark=mark, changes=bool(plan["outlook"]), plan=plan)

    def save(self, form: Any, *, mark: str, reason: str) -> str:
        """Save the previewed edits, all or none."""
        if mark != self.review(form).mark:
            raise PreviewStale(
                sentence("The draft has changed in the meantime. Check it again.")
            )
        change = accounts.save(
            edits=self.edits,
            actor=self.actor,
            reason=form.cleaned_data["reason"],
            now=self.now,
        )
        tree_draft.forget(self.request)
        return sentence(
            "Saved as change #{number}. It can be undone below.", number=change.pk
        )

    def done(self) -> HttpResponseBase:
        """Return to the changes."""
        return redirect("manage-changes")

    def context(self, form: Any, review: Review | None) -> dict[str, Any]:
        """Return the edits one by one, and their outlook."""
        plan = review.plan if review else {}
        return {"edits": list(enumerate(_called(self.edits))), **plan}


def _called(edits: Sequence[Edit]) -> list[str]:
    """Return what each edit is about, in words."""
    rows = [(edit.table, edit.pk) for edit in edits if edit.pk is not None]
    names = Names.stored(rows, ())
    return [
        edit.called if edit.pk is None else names.of(edit.table, edit.pk)
        for edit in edits
    ]


def preview(
    request: HttpRequest, edits: Sequence[Edit], now: datetime
) -> dict[str, Any]:
    """Return what templates need to show what edits would do."""
    done = accounts.look(edits, now=now)
    found: dict[str, Any] = {"problems": accounts.words_of(done)}
    if done.problems:
        return found | {"changes": change_rows(done), "outlook": None}
    return found | preview_of(request, done, now)


def preview_of(request: HttpRequest, done: Edited, now: datetime) -> dict[str, Any]:
    """Return the same of edits that can be made."""
    seen = outlook(done, now=now, policy=site_policy())
    return {
        "changes": change_rows(done),
        "outlook": seen,
        "moved": _moved_page(request, done, seen),
        "of": sum(row.table == "member" for row in seen.moved),
    }


def change_rows(done: Edited, most: int = 200) -> list[EditRow]:
    """Return the changed rows in words, the first ``most`` of them."""
    changed = done.changed[:most]
    names = Names(done)
    found = []
    for table, pk in changed:
        before = accounts.plain(done.before.rows(table).get(pk))
        after = accounts.plain(done.after.rows(table)[pk])
        found.append(
            EditRow(
                name=names.of(table, pk),
                fields=[
                    (
                        FIELD_WORDS.get(name, name),
                        value_words(name, old, names),
                        value_words(name, new, names),
                    )
                    for name, old, new in changed_fields(before, after)
                    if name in FIELD_WORDS
                ],
                new=before is None,
            )
        )
    return found


def _moved_page(request: HttpRequest, done: Edited, seen: Outlook) -> Any:
    rows = seen.moved
    if request.GET.get("all") != "1":
        rows = rows[: seen.changed]
    number = request.GET.get("page", "1")
    page = Paginator(rows, ROWS_PER_PAGE).get_page(number)
    names = Names(done, [(row.table, row.pk) for row in page.object_list])
    shown: list[Any] = [
        MovedRow(names.of(row.table, row.pk), row.table == "account", row)
        for row in page.object_list
    ]
    page.object_list = shown
    return page


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
