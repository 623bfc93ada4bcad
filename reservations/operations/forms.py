"""Forms of the pages for closures, pools and machines."""

from datetime import datetime
from typing import Any

from django import forms
from django.db.models import QuerySet
from django.utils.translation import gettext, gettext_lazy

from reservations.models import Account, Closure, Membership
from reservations.operations.bulk_acts import ACTS, BulkAct
from reservations.operations.peak_hours import LONGEST_TEXT
from reservations.rules.prices import MOST_FACTOR
from reservations.web.credit_field import HoursField
from reservations.web.forms import WALL
from telemetry.models import Gpu, Node, Pool
from telemetry.protocol.sentences import sentence
from telemetry.web.local_time_field import LocalTimeField
from telemetry.web.plain_forms import PlainForm
from telemetry.web.query_filters import whole_number

MOST_KEY = 2**62
REASON_LENGTH = 200
_MOMENT = {"type": "datetime-local", "class": "input", "data-when": True}


def key_field(**kwargs: Any) -> forms.IntegerField:
    """Return a field for a row's key."""
    return forms.IntegerField(min_value=1, max_value=MOST_KEY, **kwargs)


class MomentField(LocalTimeField):
    """An instant, typed in the site's zone."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(
            widget=forms.DateTimeInput(attrs=_MOMENT, format=WALL),
            input_formats=[WALL, f"{WALL}:%S"],
            **kwargs,
        )

    def clean(self, value: Any) -> datetime | None:
        """Return the instant, if the calendar could ever show it."""
        at = super().clean(value)
        if at is not None and not 2000 <= at.year <= 2200:
            raise forms.ValidationError(
                gettext("The year is not between 2000 and 2200.")
            )
        return at  # type: ignore[no-any-return]


class KeysField(forms.ModelMultipleChoiceField):
    """Rows by their keys. A key that no database can store is invalid."""

    def clean(self, value: Any) -> Any:
        """Return the rows."""
        for key in value if isinstance(value, list | tuple) else ():
            if isinstance(key, str) and not whole_number(key):
                raise forms.ValidationError(
                    self.error_messages["invalid_pk_value"],
                    code="invalid_pk_value",
                    params={"pk": key[:20]},
                )
        return super().clean(value)


def _select(queryset: QuerySet[Any], label: str, empty: str) -> Any:
    return forms.ModelChoiceField(
        queryset=queryset,
        required=False,
        label=label,
        empty_label=empty,
        widget=forms.Select(attrs={"class": "select"}),
    )


class ClosureForm(PlainForm):
    """The form of a closure: its Gpus, times and reason."""

    kind = forms.ChoiceField(
        label=gettext_lazy("Kind"),
        choices=Closure.Kind.choices,
        widget=forms.Select(attrs={"class": "select"}),
        help_text=gettext_lazy(
            "Maintenance and blackout: nobody can book. Teaching slot: only members "
            "of the group can book."
        ),
    )
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=REASON_LENGTH,
        widget=forms.TextInput(attrs={"class": "input"}),
        help_text=gettext_lazy("Shown to affected users."),
    )
    start = MomentField(label=gettext_lazy("From"))
    end = MomentField(label=gettext_lazy("To"))
    account = _select(
        Account.objects.filter(archived_at=None),
        sentence("Kept for (teaching)"),
        sentence("nobody"),
    )
    scope = forms.ChoiceField(
        label=gettext_lazy("Closes"),
        choices=Closure.Scope.choices,
        widget=forms.Select(attrs={"class": "select"}),
    )
    node = _select(
        Node.objects.in_service(), sentence("Node"), sentence("choose a node")
    )
    pool = _select(Pool.objects.all(), sentence("Pool"), sentence("choose a pool"))
    gpus = KeysField(
        queryset=Gpu.objects.shown().select_related("node", "pool"),
        required=False,
        label="GPUs",
        widget=forms.CheckboxSelectMultiple,
    )
    version = forms.IntegerField(required=False, widget=forms.HiddenInput)

    field_order = ("kind", "reason", "start", "end", "account", "scope", "node", "pool")


class ClosuresAsked(PlainForm):
    """A filter of closures, and the page."""

    show = forms.ChoiceField(
        required=False, choices=[("standing", ""), ("over", ""), ("all", "")]
    )
    kind = forms.ChoiceField(required=False, choices=Closure.Kind.choices)
    q = forms.CharField(required=False, max_length=80)
    page = forms.IntegerField(required=False, min_value=1, max_value=10**6)


class GpusAsked(PlainForm):
    """A filter of Gpus, their order, and the page."""

    node = key_field(required=False)
    pool = key_field(required=False)
    state = forms.ChoiceField(
        required=False,
        choices=[(word, "") for word in ("open", "draining", "out", "missing")],
    )
    q = forms.CharField(required=False, max_length=80)
    sort = forms.ChoiceField(
        required=False, choices=[(word, "") for word in ("gpu", "pool", "memory")]
    )
    page = forms.IntegerField(required=False, min_value=1, max_value=10**6)


class ActForm(PlainForm):
    """One act on many Gpus."""

    act = forms.ChoiceField(
        label=gettext_lazy("Action"),
        choices=[
            (act.value, info.label) for act, info in ACTS.items() if act != BulkAct.POOL
        ]
        + [
            (BulkAct.POOL.value, ACTS[BulkAct.POOL].label),
            ("maintenance", sentence("Plan maintenance")),
        ],
        widget=forms.Select(attrs={"class": "select"}),
    )
    pool = _select(Pool.objects.all(), sentence("Pool"), sentence("choose a pool"))
    gpus = KeysField(queryset=Gpu.objects.filter(retired=False), required=True)
    reason = forms.CharField(
        label=gettext_lazy("Reason"), required=False, max_length=REASON_LENGTH
    )
    move_booked = forms.BooleanField(
        label=gettext_lazy("Move bookings"), required=False
    )

    def clean(self) -> dict[str, Any]:
        """Ask for the Pool of a move.

        Raises:
            ValidationError: on the Pool.
        """
        values = super().clean() or {}
        if values.get("act") == BulkAct.POOL and values.get("pool") is None:
            self.add_error("pool", gettext("Choose a pool."))
        return values


class PoolForm(PlainForm):
    """The price of a Pool, its peak hours, and the groups that may book it."""

    weight = forms.IntegerField(
        label=gettext_lazy("Weight"),
        min_value=1,
        max_value=10_000,
        help_text=gettext_lazy(
            "Credits for 1 GPU-hour. It applies to bookings made from now on."
        ),
        widget=forms.NumberInput(attrs={"class": "input"}),
    )
    peak_hours = forms.CharField(
        label=gettext_lazy("Peak hours"),
        required=False,
        max_length=LONGEST_TEXT,
        help_text=gettext_lazy(
            "Days and whole hours on the site’s clock, as in “Mon-Fri 9-18; "
            "Sat 10-14”; empty: none."
        ),
        widget=forms.TextInput(attrs={"class": "input"}),
    )
    peak_factor = forms.IntegerField(
        label=gettext_lazy("Peak factor"),
        required=False,
        min_value=1,
        max_value=MOST_FACTOR,
        help_text=gettext_lazy(
            "Price factor in these hours, 2 to 10. 1 means no extra price. "
            "Existing bookings keep their price."
        ),
        widget=forms.NumberInput(attrs={"class": "input"}),
    )
    accounts = KeysField(
        queryset=Account.objects.filter(archived_at=None),
        required=False,
        label=gettext_lazy("Who may book"),
        help_text=gettext_lazy(
            "Members of these groups and of their subgroups. None: everybody."
        ),
        widget=forms.CheckboxSelectMultiple,
    )
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=REASON_LENGTH,
        widget=forms.TextInput(attrs={"class": "input"}),
    )


class NewPoolForm(PlainForm):
    """A new Pool with its name."""

    name = forms.CharField(label=gettext_lazy("Name"), max_length=80)
    weight = forms.IntegerField(
        label=gettext_lazy("Weight"), min_value=1, max_value=10_000
    )
    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=REASON_LENGTH)


class PoolQuotaForm(PlainForm):
    """The quota of an Account, or of one of its members, on a Pool."""

    account = _select(
        Account.objects.filter(archived_at=None),
        sentence("Group"),
        sentence("choose a group"),
    )
    login = forms.CharField(
        required=False,
        max_length=150,
        label=gettext_lazy("User name of one member. Empty: the whole group"),
    )
    quota_gpu_seconds = HoursField(
        label=gettext_lazy("Credits in any 7 days. Empty: no limit")
    )
    reason = forms.CharField(label=gettext_lazy("Reason"), max_length=REASON_LENGTH)

    def clean(self) -> dict[str, Any]:
        """Find the member.

        Raises:
            ValidationError: on the field that is wrong.
        """
        values = super().clean() or {}
        account, login = values.get("account"), (values.get("login") or "").strip()
        if account is None:
            self.add_error("account", gettext("Choose a group."))
        elif login:
            found = Membership.objects.filter(account=account, user__username=login)
            values["member"] = found.first()
            if values["member"] is None:
                self.add_error(
                    "login",
                    gettext("%(account)s has no member with this user name.")
                    % {"account": account},
                )
        return values


class ReplaceForm(PlainForm):
    """The Gpu to replace, and the one that replaces it."""

    old = forms.ModelChoiceField(
        queryset=Gpu.objects.shown().select_related("node"),
        label=gettext_lazy("Replace"),
        empty_label=gettext_lazy("choose a GPU"),
        widget=forms.Select(attrs={"class": "select"}),
    )
    new = forms.ModelChoiceField(
        queryset=Gpu.objects.shown().select_related("node"),
        label="by",
        empty_label=gettext_lazy("choose a GPU"),
        widget=forms.Select(attrs={"class": "select"}),
    )
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        required=False,
        max_length=REASON_LENGTH,
        widget=forms.TextInput(attrs={"class": "input"}),
        help_text=gettext_lazy("Shown to the people whose bookings move."),
    )


class GateForm(PlainForm):
    """Set the mode of a Node's device gate."""

    mode = forms.ChoiceField(
        label=gettext_lazy("Device gate"), choices=Node.GateMode.choices
    )


class DrainForm(PlainForm):
    """Drain a Node, or end its drain."""

    draining = forms.BooleanField(label=gettext_lazy("Draining"), required=False)
    reason = forms.CharField(
        label=gettext_lazy("Reason"), max_length=REASON_LENGTH, required=False
    )

    def clean(self) -> dict[str, Any]:
        """Require a reason for a drain. Its end needs none.

        Raises:
            ValidationError: on the reason.
        """
        values = super().clean() or {}
        if values.get("draining") and not values.get("reason"):
            self.add_error(
                "reason", gettext("Give a reason: it is shown to everybody.")
            )
        return values
