"""The page of the review flow that saves edits of the tree of Accounts.

The draft, the import of a file and a new course make edits in different ways. What
follows is the same for all three: show the rows that change and the effect on quotas
and ranks, then save all edits or none.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponseBase
from django.shortcuts import redirect

from reservations.accounts.tree import service as accounts
from reservations.accounts.tree.outlook_queries import Outlook, outlook
from reservations.accounts.tree.tree_edits import Edit, Edited
from reservations.accounts.tree.tree_outlook import Moved
from reservations.accounts.tree.tree_text import FIELD_WORDS, Names, value_text
from reservations.accounts.tree.tree_undo import changed_fields
from reservations.models import TreeChange
from reservations.rules.review import PreviewStale, mark_of
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


@dataclass(frozen=True)
class EditsRead:
    """The edits that a form stands for, or why there are none."""

    edits: Sequence[Edit] = ()
    problems: Sequence[str] = ()
    source: Any = None
    """The source of the edits, for the template and for the sentence after saving."""


class EditsPage(ReviewPage):
    """A page that saves edits of the tree, all or none."""

    tab = "accounts"
    kind: ClassVar[str] = TreeChange.Kind.EDIT
    stale: ClassVar[str] = sentence(
        "The groups have changed in the meantime. Check the preview again."
    )

    @abstractmethod
    def read(self, form: Any) -> EditsRead:
        """Return the edits that a valid form stands for now."""

    @abstractmethod
    def saved(self, change: TreeChange, found: EditsRead) -> str:
        """Return the sentence for the next page."""

    def review(self, form: Any) -> Review:
        """Return what the edits do to rows, shares and ranks."""
        found = self.read(form)
        plan: dict[str, Any] = {"source": found.source, "changes": [], "outlook": None}
        problems = found.problems
        if not problems:
            done = accounts.preview_edits(found.edits, now=self.now)
            problems = accounts.problem_sentences(done)
            plan["changes"] = change_rows(done)
            if not problems:
                plan |= _outlook_of(self.request, done, self.now)
        return Review(
            mark=_mark(found.edits),
            changes=bool(plan["outlook"] and plan["changes"]),
            problems=problems,
            plan=plan,
        )

    def save(self, form: Any, *, mark: str, reason: str) -> str:
        """Save the edits that the review showed."""
        found = self.read(form)
        if found.problems or mark != _mark(found.edits):
            raise PreviewStale(self.stale)
        change = accounts.save(
            edits=found.edits,
            actor=self.actor,
            reason=reason,
            now=self.now,
            kind=self.kind,
        )
        return self.saved(change, found)

    def done(self) -> HttpResponseBase:
        """Return to the changes, where this one can be undone."""
        return redirect("manage-changes")

    def context(self, form: Any, review: Review | None) -> dict[str, Any]:
        """Return the changed rows and their outlook."""
        return dict(review.plan) if review else {}


def _mark(edits: Sequence[Edit]) -> str:
    return mark_of([edit.to_json() for edit in edits])


def _outlook_of(request: HttpRequest, done: Edited, now: datetime) -> dict[str, Any]:
    """Return what edits without a problem do to quotas and ranks."""
    seen = outlook(done, now=now, policy=site_policy())
    return {
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
        before = accounts.row_values(done.before.rows(table).get(pk))
        after = accounts.row_values(done.after.rows(table)[pk])
        found.append(
            EditRow(
                name=names.of(table, pk),
                fields=[
                    (
                        FIELD_WORDS.get(name, name),
                        value_text(name, old, names),
                        value_text(name, new, names),
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
