"""The flow for changes by an admin: fill in, review, save, undo.

A page of the flow is a ``ReviewPage``: it makes the form, says what the change does and
saves it. The templates include ``reservations/_review.html``, which shows the review
with its mark and the buttons. ``undo_answer`` takes a saved change back. An import and
a new course are undone as a change of the tree of accounts. An act on many GPUs has no
undo: the list of acts has its opposite.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.translation import gettext, gettext_lazy

from reservations.rules.errors import NotFound
from reservations.rules.review import FieldsInvalid, PreviewStale
from reservations.store.access import reader
from telemetry.protocol.coded_error import CodedError
from telemetry.web.error_answers import add_errors, message_of

REASON_LENGTH = 200
MARK_MOST = 64
PROBLEMS_SHOWN = 100
Line = tuple[str, str, str]
"""(field, before, after) in words."""


@dataclass(frozen=True, slots=True)
class Review:
    """The effects of a change, as the page shows them before it is saved."""

    mark: str
    """Ties what is saved to what was shown (``reservations.rules.review.mark_of``)."""
    title: str = ""
    """Heading of the changes or of the affected bookings. Empty: the page has its
    own.
    """
    aside: str = ""
    """Beside the heading: how much is affected."""
    lines: Sequence[Line] = ()
    effects: Sequence[str] = ()
    """The effects of the change in sentences."""
    touched: Sequence[Any] = ()
    """The affected bookings, for ``_touched.html``."""
    warning: str = ""
    problems: Sequence[str] = ()
    """Why it cannot be saved as it is, in sentences."""
    changes: bool = True
    """Whether there is anything to save."""
    plan: Any = None
    """Further values for the page."""


class ReviewPage(ABC):
    """One page of the flow. A view calls ``answer``."""

    template: ClassVar[str]
    tab: ClassVar[str]
    asks_reason: ClassVar[bool] = False
    """Whether the review has a field for the reason. Otherwise the form may have
    one.
    """
    reason_length: ClassVar[int] = REASON_LENGTH
    reviews_at_once: ClassVar[bool] = False
    """Whether the page shows the review when it is opened."""
    save_label: ClassVar[Any] = gettext_lazy("Save")
    problems_title: ClassVar[Any] = ""
    before_hint: ClassVar[Any] = gettext_lazy("Preview the change first. Then save it.")
    after_hint: ClassVar[Any] = gettext_lazy(
        "This is what saving does now. Nothing is saved yet."
    )

    def __init__(self, request: HttpRequest) -> None:
        self.request = request
        self.now = timezone.now()
        self.actor = reader(request)

    @abstractmethod
    def form_of(self, data: Any) -> Any:
        """Return the form, bound to the data of a POST. None: with the present
        values.
        """

    @abstractmethod
    def review(self, form: Any) -> Review:
        """Return the effects that the values of a valid form would have now.

        Raises:
            FieldsInvalid, NotFound.
        """

    @abstractmethod
    def save(self, form: Any, *, mark: str, reason: str) -> str:
        """Save what the review showed. Return the message for the next page.

        Raises:
            PreviewStale: it would do something else now. Nothing is saved.
            FieldsInvalid, NotFound, CodedError.
        """

    def done(self) -> HttpResponseBase:
        """Return the redirect after saving."""
        return redirect(self.request.path)

    def context(self, form: Any, review: Review | None) -> Mapping[str, Any]:
        """Return the template's context besides the form and the review."""
        return {}

    def answer(self) -> HttpResponseBase:
        """Show the form or its review, or save the reviewed change."""
        post = self.request.POST
        if self.request.method != "POST":
            form = self.form_of(None)
            review = self.review(form) if self.reviews_at_once else None
            return self.page(form, review)
        form = self.form_of(post)
        if not form.is_valid():
            return self.page(form, self._shown_at_once(form), status=422)
        try:
            if "save" not in post:
                review = self.review(form)
                return self.page(form, review, status=422 if review.problems else 200)
            reason = post.get("reason", "").strip()[: self.reason_length]
            if self.asks_reason and not reason:
                why = gettext("Give a reason: it is kept with the change.")
                return self.page(form, self.review(form), problem=why, status=422)
            mark = post.get("mark", "")[:MARK_MOST]
            words = self.save(form, mark=mark, reason=reason)
        except FieldsInvalid as error:
            add_errors(form, error)
            return self.page(form, self._shown_at_once(form), status=422)
        except PreviewStale as stale:
            return self.page(
                form, self.review(form), problem=message_of(stale), status=409
            )
        except NotFound as missing:
            raise Http404 from missing
        except CodedError as error:
            review = self._shown_at_once(form)
            return self.page(form, review, problem=message_of(error), status=409)
        messages.success(self.request, words)
        return self.done()

    def _shown_at_once(self, form: Any) -> Review | None:
        return self.review(form) if self.reviews_at_once else None

    def page(
        self,
        form: Any,
        review: Review | None = None,
        *,
        problem: str = "",
        status: int = 200,
    ) -> HttpResponse:
        """Return the page with the form, and the review if there is one."""
        context = {
            "tab": self.tab,
            "form": form,
            "review": review,
            "problem": problem,
            "asks_reason": self.asks_reason,
            "reason_length": self.reason_length,
            "hide_preview": self.reviews_at_once,
            "save_label": self.save_label,
            "problems": review.problems[:PROBLEMS_SHOWN] if review else (),
            "more_problems": max(len(review.problems) - PROBLEMS_SHOWN, 0)
            if review
            else 0,
            "problems_title": self.problems_title,
            "review_hint": self.before_hint if review is None else self.after_hint,
            **self.context(form, review),
        }
        return render(self.request, self.template, context, status=status)


def undo_answer(
    request: HttpRequest, act: Callable[[], str], to: str, *args: Any
) -> HttpResponseBase:
    """Undo a saved change, and show whether that worked.

    Args:
        act: does it, and returns the message for the next page.
        to: name of that page.
    """
    try:
        words = act()
    except NotFound as missing:
        raise Http404 from missing
    except FieldsInvalid as invalid:
        text = gettext("Not undone: %(messages)s") % {"messages": message_of(invalid)}
        messages.error(request, text)
    except CodedError as error:
        messages.error(request, message_of(error))
    else:
        messages.success(request, words)
    return redirect(to, *args)
