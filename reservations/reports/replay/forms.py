"""The form of a replay: its period, rules, shares and quotas."""

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.utils.translation import gettext, gettext_lazy

from reservations.models import Account
from reservations.reports.replay import service as replays
from reservations.reports.replay.comparison import EDITABLE
from reservations.reports.replay.site_rules import (
    MOST_FACTOR_PERMILLE,
    MOST_SHARES,
    AccountEdit,
)
from telemetry.models import Pool
from telemetry.protocol.sentences import sentence
from telemetry.web.plain_forms import PlainForm

HOUR = 3600
DAYS = (30, 7, 90)
MOST_HOURS = 10_000_000
MOST_ACCOUNTS = 40
"""Rows of Accounts on the form. A filter reaches the others."""
TITLES = {
    "quota_gpu_seconds": (
        sentence("Quota"),
        sentence("credits in any 7 days, for a member without their own quota"),
    ),
    "half_life_seconds": (
        sentence("Half-life"),
        sentence("hours after which past use counts half"),
    ),
    "freeze_seconds": (
        sentence("Freeze"),
        sentence("hours before its start in which nobody can take a flex booking"),
    ),
    "firm_horizon_seconds": (
        sentence("Firm horizon"),
        sentence("hours ahead at which a firm booking may begin"),
    ),
    "flex_horizon_seconds": (
        sentence("Flex horizon"),
        sentence("hours ahead at which a flex booking may begin"),
    ),
}


class SpanForm(PlainForm):
    """The past to replay, and its options."""

    days = forms.TypedChoiceField(
        coerce=int, choices=[(n, sentence("the last {n} days", n=n)) for n in DAYS]
    )
    counted_from = forms.ChoiceField(
        choices=[
            ("asked", sentence("from the request")),
            ("start", sentence("from the planned start")),
        ]
    )
    pool = forms.ModelChoiceField(
        Pool.objects.order_by("gpu_class"),
        required=False,
        empty_label=gettext_lazy("all together"),
    )

    def span(self, now: datetime) -> replays.ReplayPeriod:
        """Return the span, in whole hours."""
        end = now.replace(minute=0, second=0, microsecond=0)
        given = self.cleaned_data
        return replays.ReplayPeriod(
            start=end - timedelta(days=given["days"]),
            end=end,
            counted_from=given["counted_from"],
            pool=given["pool"],
        )


class ReplayForm(SpanForm):
    """The span and the edited rules, all in hours."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, (title, _unit) in TITLES.items():
            self.fields[name] = forms.FloatField(
                label=title, min_value=0, max_value=MOST_HOURS
            )

    def seconds(self) -> dict[str, int]:
        """Return the edited rules in seconds."""
        return {name: round(self.cleaned_data[name] * HOUR) for name in EDITABLE}


class AccountsForm(PlainForm):
    """Present or edited shares and quotas of some Accounts."""

    def __init__(self, accounts: list[Account], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.accounts = accounts
        for account in accounts:
            shares, quota, factor = self.names(account)
            self.fields[shares] = forms.IntegerField(
                required=False,
                min_value=0,
                max_value=MOST_SHARES,
                initial=account.shares,
            )
            self.fields[quota] = forms.FloatField(
                required=False,
                min_value=0,
                max_value=MOST_HOURS,
                initial=_hours(account.quota_gpu_seconds),
            )
            self.fields[factor] = forms.FloatField(
                required=False,
                min_value=0,
                max_value=MOST_FACTOR_PERMILLE / 1000,
                initial=1,
            )

    @staticmethod
    def names(account: Account) -> tuple[str, str, str]:
        """Return the names of its three fields."""
        return tuple(f"{what}-{account.pk}" for what in ("shares", "quota", "factor"))  # type: ignore[return-value]

    def rows(self) -> list[tuple[Account, list[tuple[str, Any]]]]:
        """Return each Account with its fields, for the page."""
        words = (
            gettext("shares"),
            gettext("quota in hours"),
            gettext("factor of its members' quotas"),
        )
        return [
            (one, list(zip(words, [self[n] for n in self.names(one)], strict=True)))
            for one in self.accounts
        ]

    def edits(self) -> dict[str, AccountEdit]:
        """Return the values that differ from the present ones."""
        found = {}
        for account in self.accounts:
            now = AccountEdit(account.shares, account.quota_gpu_seconds)
            shares, quota, factor = self.names(account)
            given = self.cleaned_data
            edit = AccountEdit(
                now.shares if given[shares] is None else given[shares],
                self._quota(quota, now.quota_gpu_seconds),
                1000 if given[factor] is None else round(given[factor] * 1000),
            )
            if edit != now:
                found[account.name] = edit
        return found

    def _quota(self, name: str, now_gpu_seconds: int | None) -> int | None:
        """Return the given value. Unedited values keep their seconds."""
        hours = self.cleaned_data[name]
        if name not in self.data or hours == _hours(now_gpu_seconds):
            return now_gpu_seconds
        return None if hours is None else round(hours * HOUR)


def _hours(gpu_seconds: int | None) -> float | int | None:
    if gpu_seconds is None:
        return None
    hours = round(gpu_seconds / HOUR, 3)
    return int(hours) if hours == int(hours) else hours


def accounts_named(text: str) -> tuple[list[Account], int]:
    """Return the Accounts that a filter names, and how many it left out.

    Args:
        text: words. An Account with any of them in its name or title matches.
    """
    rows = Account.objects.filter(archived_at=None).order_by("name")
    words = text.lower().replace(",", " ").split()
    found = [
        one
        for one in rows
        if not words or any(w in f"{one.name} {one.title}".lower() for w in words)
    ]
    return found[:MOST_ACCOUNTS], max(0, len(found) - MOST_ACCOUNTS)
