"""The operator's pages of the two policies: preview, save and undo."""

from dataclasses import dataclass
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.core.paginator import Paginator
from django.forms import modelform_factory
from django.http import Http404, HttpRequest, HttpResponseBase
from django.shortcuts import redirect
from django.utils import timezone
from django.utils.translation import gettext
from django.views.decorators.http import (
    require_http_methods,
    require_POST,
    require_safe,
)

from reservations.models import AuditEntry
from reservations.operations import policies, policy_undo
from reservations.operations.policy_fields import (
    PolicyField,
    exact_duration,
    read_duration,
)
from reservations.operations.policy_impact import effect_sentences
from reservations.rules.errors import NotFound
from reservations.store.access import operator_required, reader
from reservations.web.credit_field import HoursField, hours, read_credits
from reservations.web.review_page import Review, ReviewPage, undo_answer
from telemetry.protocol.sentences import counted, sentence
from telemetry.rules.policy_declaration import PolicyRule
from telemetry.web.bytes_field import BytesField
from telemetry.web.plain_forms import PlainModelForm

ROWS_PER_PAGE = 10
TITLES = {"booking": sentence("Booking"), "telemetry": sentence("Telemetry")}


class DurationField(forms.Field):
    """A duration, typed as "14 d" or "1 h 30 min", stored in whole seconds."""

    def __init__(self, rule: PolicyField) -> None:
        self.rule = rule
        super().__init__(
            widget=forms.TextInput(attrs={"class": "input", "autocomplete": "off"}),
            error_messages={
                "required": gettext("Type a length of time, such as “2 h”.")
            },
        )

    def prepare_value(self, value: Any) -> Any:
        """Return the stored seconds in words. Typed text stays as typed."""
        return exact_duration(value) if isinstance(value, int) else value

    def to_python(self, value: Any) -> Any:
        """Return seconds.

        Raises:
            ValidationError: not a duration, or outside the limits.
        """
        if value in self.empty_values:
            return None
        try:
            seconds = read_duration(str(value)[:80])
        except ValueError as error:
            raise ValidationError(
                gettext("Type a length of time, such as “14 d” or “1 h 30 min”.")
            ) from error
        if not self.rule.accepts(seconds):
            raise ValidationError(self.rule.outside)
        return seconds


class CreditsField(HoursField):
    """Credits as typed, stored as whole weighted GPU-seconds."""

    def __init__(self, rule: PolicyField) -> None:
        self.rule = rule
        super().__init__(
            widget=forms.TextInput(attrs={"class": "input", "inputmode": "decimal"})
        )

    def prepare_value(self, value: Any) -> Any:
        """Return the stored seconds as credits. Typed text stays as typed."""
        return hours(value) if isinstance(value, int) else value

    def clean(self, value: Any) -> Any:
        """Return GPU-seconds.

        Raises:
            ValidationError: not a number, or outside the rule's limits.
        """
        text = str(value or "").lower().removesuffix("credits").strip()
        try:
            found = read_credits(text)
        except ValueError as error:
            words = gettext("Enter a number of credits, such as 40.")
            raise ValidationError(words) from error
        if not self.rule.accepts(found):
            raise ValidationError(self.rule.outside)
        return found


@dataclass(frozen=True)
class Shown:
    """One field with its input."""

    rule: PolicyField
    input: Any


@dataclass(frozen=True)
class Past:
    """One past change, and whether it can be undone."""

    entry: AuditEntry
    lines: list[tuple[str, str, str]]
    undoable: bool


@require_safe
@operator_required
def home(request: HttpRequest) -> HttpResponseBase:
    """Redirect to the booking policy."""
    return redirect("manage-policy-one", "booking")


@require_http_methods(["GET", "HEAD", "POST"])
@operator_required
def policy_page(request: HttpRequest, which: str) -> HttpResponseBase:
    """Show a policy, preview a change, and save it."""
    return PolicyPage(request, which).answer()


class PolicyPage(ReviewPage):
    """The rules of one policy."""

    template = "reservations/operations/policy_edit.html"
    tab = "policy"
    asks_reason = True

    def __init__(self, request: HttpRequest, which: str) -> None:
        super().__init__(request)
        self.which = which
        self.rules = _rules(which)

    def form_of(self, data: Any) -> Any:
        """Return the form with an input for each rule."""
        return _form(self.which, self.rules, data)

    def review(self, form: Any) -> Review:
        """Return the rules that change, and the effects on bookings."""
        found = policies.preview(which=self.which, values=self._values(form))
        booking = self.which == "booking"
        return Review(
            mark=found.mark,
            title=sentence("What changes")
            if found.changes
            else sentence("Nothing changes"),
            lines=policies.lines_of(found.changes),
            effects=effect_sentences(found.changes, self.now) if booking else [],
            changes=bool(found.changes),
            plan=found,
        )

    def save(self, form: Any, *, mark: str, reason: str) -> str:
        """Save the changed rules. Return a message with their number."""
        changes = policies.save(
            which=self.which,
            values=self._values(form),
            actor=self.actor,
            now=self.now,
            reason=reason,
            mark=mark,
        )
        if not changes:
            return sentence("Nothing changed.")
        return counted("{n} rule changed.", "{n} rules changed.", len(changes))

    def context(self, form: Any, review: Review | None) -> dict[str, Any]:
        """Return the rules by group, and the history."""
        past = Paginator(policies.history(self.which), ROWS_PER_PAGE).get_page(
            self.request.GET.get("page", "1")[:6]
        )
        return {
            "which": self.which,
            "titles": TITLES.items(),
            "title": TITLES[self.which],
            "groups": _grouped(self.rules, form),
            "past": past,
            "history": [_past_change(self.which, entry) for entry in past],
            "query": "",
        }

    def _values(self, form: Any) -> dict[str, object]:
        return {rule.name: form.cleaned_data[rule.name] for rule in self.rules}


def _rules(which: str) -> list[PolicyField]:
    try:
        return policies.fields_of(which)
    except NotFound as missing:
        raise Http404 from missing


def _form(which: str, rules: list[PolicyField], data: Any = None) -> Any:
    model = policies.MODELS[which]
    own: dict[str, forms.Field] = {}
    for rule in rules:
        if rule.name.endswith("_gpu_seconds"):
            own[rule.name] = CreditsField(rule)
        elif rule.name.endswith("_bytes"):
            least, most = rule.rule.row_limits
            own[rule.name] = BytesField(
                least=least,
                most=most,
                widget=forms.TextInput(attrs={"class": "input", "autocomplete": "off"}),
            )
        elif rule.name.endswith("_seconds"):
            own[rule.name] = DurationField(rule)
    made = modelform_factory(
        model,
        form=PlainModelForm,
        fields=[rule.name for rule in rules],
        widgets={
            rule.name: _widget(rule.rule) for rule in rules if rule.name not in own
        },
    )
    # One base class, so that the model's checks still run on the values of these
    # fields.
    shaped = type(made.__name__, (made,), {**own, "__module__": __name__})
    return shaped(data, instance=model.current())


def _grouped(rules: list[PolicyField], form: Any) -> list[tuple[str, list[Shown]]]:
    """Return the rules with their inputs, under the titles of their groups."""
    found: dict[str, list[Shown]] = {}
    for rule in rules:
        found.setdefault(rule.rule.group, []).append(Shown(rule, form[rule.name]))
    other = found.pop("", [])
    title = gettext("Other rules") if found else gettext("Rules")
    return [*found.items(), *([(title, other)] if other else [])]


def _widget(rule: PolicyRule) -> forms.Widget:
    if rule.kind == "switch":
        return forms.CheckboxInput()
    if rule.kind == "lines":
        return forms.Textarea(attrs={"class": "textarea", "rows": 6})
    if rule.kind == "words":
        return forms.TextInput(attrs={"class": "input"})
    least, most = rule.row_limits
    step = "any" if rule.kind == "ratio" else 1
    return forms.NumberInput(
        attrs={"class": "input", "step": step, "min": least, "max": most}
    )


def _past_change(which: str, entry: AuditEntry) -> Past:
    before, after = entry.detail.get("before"), entry.detail.get("after")
    if not isinstance(before, dict) or not isinstance(after, dict):
        names = entry.detail.get("fields", [])
        return Past(entry, [(str(name), "", "") for name in names], undoable=False)
    changes = {name: (before.get(name), value) for name, value in after.items()}
    current = policies.MODELS[which].current()
    same = all(getattr(current, name) == value for name, value in after.items())
    return Past(entry, policies.lines_of(changes), undoable=same)


@require_POST
@operator_required
def undo(request: HttpRequest, which: str, pk: int) -> HttpResponseBase:
    """Restore a change's fields, unless one was changed again since."""
    _rules(which)

    def act() -> str:
        changes = policy_undo.undo(
            which=which,
            entry_id=pk,
            actor=reader(request),
            now=timezone.now(),
            reason=sentence("undoes change #{number}", number=pk),
        )
        return gettext("Undone: %(count)s restored.") % {"count": len(changes)}

    return undo_answer(request, act, "manage-policy-one", which)
