"""A person's standing: rank, path, quota ahead, the group, the ledger."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from django import forms
from django.conf import settings
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from reservations.fairshare import service as standing_service
from reservations.fairshare import standing_text
from reservations.fairshare.group_use import group_of
from reservations.fairshare.rights_text import PersonRights, rights_of
from reservations.fairshare.service import FairshareStatus, MembershipStanding
from reservations.fairshare.standing_advice import advice
from reservations.models import (
    Account,
    LedgerEntry,
    Membership,
    RefusedRequest,
    User,
)
from reservations.rules.policy import Policy
from reservations.store.access import reader, steered_accounts
from reservations.store.booking_facts import site_policy
from telemetry.web.csv_answer import csv_answer
from telemetry.web.plain_forms import PlainForm
from telemetry.web.query_filters import read_filters

ROWS_PER_PAGE = 25
REFUSED = 8
"""Refused requests on the page. A few more are stored."""
CSV_ROWS = 100_000
"""More rows than anybody reads. The answer is built in memory."""


class LedgerForm(PlainForm):
    """Which rows of the ledger, and which page of them."""

    account = forms.IntegerField(required=False, min_value=1, max_value=2**62)
    membership = forms.IntegerField(required=False, min_value=1, max_value=2**62)
    kind = forms.ChoiceField(
        required=False,
        choices=[(word, word) for word in ("", "hold", "release", "charge", "import")],
    )
    page = forms.IntegerField(required=False, min_value=1, max_value=10**6)


@dataclass(frozen=True)
class StandingRequest:
    """The Membership or Account of a requested standing, checked for its reader."""

    account: Account | None
    """A whole Account. None: a Membership (or, without one, only the ledger)."""
    membership: Membership | None
    notices: list[str]
    kind: str
    page: int


def _read_standing_request(request: HttpRequest) -> StandingRequest:
    """Read the address, and check the reader's right to see it.

    Raises:
        Http404: the reader may not see the Membership or Account.
    """
    user = reader(request)
    form = read_filters(LedgerForm, request.GET)
    values = form.values
    account = membership = None
    if values.get("account"):
        account = Account.objects.filter(pk=values["account"]).first()
        if account is None or account.pk not in steered_accounts(user):
            raise Http404
    if values.get("membership"):
        membership = (
            Membership.objects.filter(pk=values["membership"])
            .select_related("user", "account")
            .first()
        )
        own = membership is not None and membership.user_id == user.pk
        if membership is None or not (
            own or membership.account_id in steered_accounts(user)
        ):
            raise Http404
    return StandingRequest(
        account=account,
        membership=membership,
        notices=form.notices,
        kind=values.get("kind") or "",
        page=values.get("page") or 1,
    )


def _rows(
    asked: StandingRequest, user: User, accounts: set[int]
) -> QuerySet[LedgerEntry]:
    """Return the requested ledger rows, newest first."""
    rows = LedgerEntry.objects.order_by("-at", "-pk")
    if asked.account is not None:
        rows = rows.filter(membership__account_id__in=accounts)
    elif asked.membership is not None:
        rows = rows.filter(membership=asked.membership)
    else:
        rows = standing_service.ledger_of(user)
    return rows.filter(kind=asked.kind) if asked.kind else rows


def _chosen(
    asked: StandingRequest, user: User
) -> tuple[FairshareStatus, MembershipStanding | None, tuple[MembershipStanding, ...]]:
    """Return the FairshareStatus, the standing to show and those to choose from."""
    subject = asked.membership.user if asked.membership else user
    whole = standing_service.standing(user=subject, now=timezone.now())
    found = whole.memberships
    wanted = asked.membership.pk if asked.membership else None
    shown = next((one for one in found if one.membership.pk == wanted), None)
    shown = shown or (found[0] if found else None)
    # A head sees a member's standing in this group, and not the member's other groups.
    own = subject.pk == user.pk
    return whole, shown, (found if own else ())


def _rights(
    whole: FairshareStatus | None,
    shown: MembershipStanding | None,
    policy: Policy,
    *,
    own: bool,
) -> PersonRights | None:
    if whole is None or shown is None:
        return None
    return rights_of(whole, policy, only=None if own else shown.membership.pk)


@dataclass(frozen=True)
class RefusedRow:
    """A refused request of the User, with the alternatives that were offered."""

    row: RefusedRequest
    slot_start: datetime | None
    slot_kind: str

    @property
    def count(self) -> int:
        """Return the number of requested Gpus."""
        return len(self.row.gpu_ids)


def _refused(shown: MembershipStanding | None) -> list[RefusedRow]:
    if shown is None:
        return []
    found = []
    for row in RefusedRequest.objects.filter(membership=shown.membership)[:REFUSED]:
        slot = row.works_instead or {}
        at = datetime.fromisoformat(slot["start"]) if slot else None
        found.append(RefusedRow(row, at, slot.get("kind", "")))
    return found


@require_safe
def standing(request: HttpRequest) -> HttpResponse:
    """Show a standing. Heads and the operator may choose whose."""
    user = reader(request)
    asked = _read_standing_request(request)
    group = group_of(asked.account) if asked.account else None
    whole, shown, choices = (None, None, ()) if group else _chosen(asked, user)
    below = set(group.account_pks) if group else set()
    rows = _rows(asked, user, below).select_related(
        "reservation", "membership__user", "membership__account"
    )
    if group is None and shown is not None:
        group = group_of(shown.membership.account)
    own = shown is not None and shown.membership.user_id == user.pk
    policy = site_policy()
    horizon_at = timezone.now() + timedelta(seconds=policy.firm_horizon_seconds)
    query = request.GET.copy()
    query.pop("page", None)
    return render(
        request,
        "reservations/fairshare/standing_show.html",
        {
            "asked": asked,
            "shown": shown,
            "choices": choices,
            "own": own,
            "group": group,
            "names": user.is_operator or policy.names_visible,
            "sentence": standing_text.first_sentence(shown, own=own)
            if shown
            else standing_text.group_sentence(group),
            "advice": advice(shown, policy, own=own) if shown else [],
            "rights": _rights(whole, shown, policy, own=own),
            "levels": standing_text.levels(
                shown.path if shown else group.path if group else ()
            ),
            "charts": standing_text.quota_charts(
                shown.quotas if shown else (), horizon_at=horizon_at
            ),
            "refused": _refused(shown) if own else [],
            "imports": bool(settings.SLURM_CLUSTER) or asked.kind == "import",
            "steered": Account.objects.filter(pk__in=steered_accounts(user)),
            "page": Paginator(rows, ROWS_PER_PAGE).get_page(asked.page),
            "query": query.urlencode(),
        },
    )


@require_safe
def ledger_csv(request: HttpRequest) -> HttpResponse:
    """Send the same rows as the page, the newest `CSV_ROWS` of them, as CSV."""
    user = reader(request)
    asked = _read_standing_request(request)
    below = set(group_of(asked.account).account_pks) if asked.account else set()
    rows = _rows(asked, user, below).select_related(
        "membership__user", "membership__account"
    )
    return csv_answer("ledger.csv", _csv_rows(rows))


def _csv_rows(rows: QuerySet[LedgerEntry]) -> Iterator[tuple[object, ...]]:
    yield (
        "at",
        "kind",
        "weighted_gpu_seconds",
        "reservation",
        "user",
        "account",
        "why",
    )
    for row in rows[:CSV_ROWS].iterator(chunk_size=2000):
        member = row.membership
        yield (
            row.at.isoformat(timespec="seconds"),
            row.kind,
            row.gpu_seconds,
            row.reservation_id,
            member and member.user.username,
            member and member.account.name,
            row.reason,
        )
