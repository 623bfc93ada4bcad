"""What the collected edits would do; then all of them are saved, or none."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import require_POST, require_safe

from reservations.accounts.tree import service as accounts
from reservations.accounts.tree import tree_draft
from reservations.accounts.tree.forms import ReasonForm
from reservations.accounts.tree.outlook_queries import Outlook, outlook
from reservations.accounts.tree.tree_edits import Edit, Edited
from reservations.accounts.tree.tree_outlook import Moved
from reservations.accounts.tree.tree_text import FIELD_WORDS, Names, value_words
from reservations.accounts.tree.tree_undo import changed_fields
from reservations.rules.errors import BookingError
from reservations.store.access import operator_required, reader
from reservations.store.booking_snapshot import site_policy

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


@require_safe
@operator_required
def show(request: HttpRequest) -> HttpResponseBase:
    """Show what the collected edits would do."""
    return _page(request, ReasonForm())


def _page(request: HttpRequest, form: ReasonForm, *, status: int = 200) -> HttpResponse:
    edits = tree_draft.drafted(request)
    now = timezone.now()
    page = {
        "tab": "accounts",
        "form": form,
        "edits": list(enumerate(_called(edits))),
        "digest": tree_draft.digest(edits),
        **preview(request, edits, now),
    }
    return render(
        request, "reservations/accounts/tree/tree_draft.html", page, status=status
    )


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
def save(request: HttpRequest) -> HttpResponseBase:
    """Save what was previewed, all of it or nothing."""
    form = ReasonForm(request.POST)
    edits = tree_draft.drafted(request)
    if not edits:
        messages.info(request, gettext("The draft is empty."))
        return redirect("manage-accounts")
    if not form.is_valid():
        return _page(request, form, status=422)
    if form.cleaned_data["digest"] != tree_draft.digest(edits):
        form.add_error(
            None, gettext("The draft has changed in the meantime. Check it again.")
        )
        return _page(request, form, status=409)
    try:
        change = accounts.save(
            edits=edits,
            actor=reader(request),
            reason=form.cleaned_data["reason"],
            now=timezone.now(),
        )
    except BookingError as error:
        form.add_error(None, error.text(timezone.get_current_timezone()))
        return _page(request, form, status=409)
    tree_draft.forget(request)
    messages.success(
        request,
        gettext("Saved as change #%(pk)s. It can be undone below.") % {"pk": change.pk},
    )
    return redirect("manage-changes")


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
