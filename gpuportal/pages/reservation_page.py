"""One Reservation's page: its state, the reason for its kind, and its cost."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.http import require_safe

from gpuportal.pages.displaced_views import displaced
from gpuportal.pages.node_access import node_access
from placement.workspace.forms import WorkspaceForm
from placement.workspace.queries import workspaces_panel
from placement.workspace.views import allow_entry
from reservations.engines.queries import hold_shown, parts_of
from reservations.models import Allocation, LedgerEntry, Reservation, User
from reservations.presence.queries import pending_release
from reservations.rules.figures import (
    credits_text,
    gpus_title,
    hours_text,
    price_sum,
    span_text,
    time_text,
)
from reservations.rules.lifecycle import State
from reservations.sharing.views import people_context, refused_form
from reservations.store.access import reader, steered_accounts, visible_reservations
from reservations.store.booking_facts import site_policy
from reservations.store.calendar_queries import Reader, iso
from reservations.store.gpu_history import reservation_usage
from reservations.web.forms import wall
from telemetry.history.charts import charts_page
from telemetry.models import Node
from telemetry.protocol.sentences import counted, sentence


def _instant(text: object) -> datetime | None:
    """Return a stored instant; None if the row is older than the field."""
    try:
        at = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _quota_sentence(quota: dict[str, Any], whose: str) -> str:
    """Return how full the fullest 7 days were, with this Reservation in them."""
    zone = timezone.get_current_timezone()
    since = _instant(quota.get("from"))
    values = {
        "hours": hours_text(int(quota["held_gpu_seconds"])),
        "whose": whose,
        "credits": credits_text(int(quota["quota_gpu_seconds"])),
    }
    if since is None:
        return sentence(
            "The fullest 7 days around it hold {hours} of {whose} {credits}.", **values
        )
    return sentence(
        "The fullest 7 days from {since} hold {hours} of {whose} {credits}.",
        since=time_text(since, zone),
        **values,
    )


def _possessive(name: str) -> str:
    return sentence("{name}’s", name=name)


def decision_text(reservation: Reservation, *, own: bool) -> list[str]:
    """Return why it is firm or flex, from the facts stored at the decision.

    The first quota is the Membership's. The others are of Accounts above it.
    """
    decision = reservation.decision or {}
    rule = str(decision.get("rule", ""))
    owner = sentence("your") if own else _possessive(str(reservation.user))
    words: list[str] = []
    if rule.startswith("1"):
        words.append(
            sentence(
                "It is firm, because it fits your quota in every 7 days around it."
            )
        )
    elif decision.get("flex_only"):
        words.append(
            sentence(
                "It is flex, because it was booked for processes that ran without a "
                "booking."
            )
        )
    elif rule.startswith("2"):
        words.append(
            sentence(
                "It is flex, because your firm quota was used up and the time was free."
            )
        )
    refused = decision.get("why_not_firm")
    if isinstance(refused, dict) and "would_hold_gpu_seconds" in refused:
        words.append(
            sentence(
                "As a firm booking, it would have raised the total of 7 days to "
                "{hours}. The quota is {credits}.",
                hours=credits_text(int(refused["would_hold_gpu_seconds"])),
                credits=credits_text(int(refused["quota_gpu_seconds"])),
            )
        )
    for number, quota in enumerate(decision.get("quotas", [])):
        whose = _possessive(str(quota.get("account", ""))) if number else owner
        words.append(_quota_sentence(quota, whose))
    gone = decision.get("displaced", [])
    if gone:
        refund = sum(int(one["refund_gpu_seconds"]) for one in gone)
        words.append(
            counted(
                "It took over {n} flex booking of others, who got {credits} back.",
                "It took over {n} flex bookings of others, who got {credits} back.",
                len(gone),
                credits=credits_text(refund),
            )
        )
    return words or [sentence("No reason was recorded.")]


def can_edit(user: User, reservation: Reservation) -> bool:
    """Return whether this reader's page offers actions. Services decide again."""
    return reservation.user_id == user.pk and reservation.state in State.live()


@require_safe
def reservation(request: HttpRequest, pk: int) -> HttpResponse:
    """Show one Reservation to its owner, its group, its heads and the operator."""
    user = reader(request)
    found = get_object_or_404(
        Reservation.objects.filter(visible_reservations(user)).select_related(
            "user", "membership__account", "membership__user"
        ),
        pk=pk,
    )
    allocations = list(found.allocations.select_related("gpu__node", "gpu__pool"))
    own = found.user_id == user.pk
    policy = site_policy()
    named = Reader.of(user, policy).sees_name(
        found.user_id, found.membership.account_id
    )
    may_see_ledger = own or found.membership.account_id in steered_accounts(user)
    now = timezone.now()
    people = people_context(found, user, now)
    shared = people["people"]["shared_with_me"]
    may_use = found.state in State.live() and (own or shared)
    slurm_hold = hold_shown(found, [one.gpu.node for one in allocations])
    engines = {one.gpu.node.engine for one in allocations}
    by_slurm = engines == {Node.Engine.SLURM}
    freezes_at = found.start.timestamp() - policy.freeze_seconds
    response = render(
        request,
        "gpuportal/pages/reservation_show.html",
        {
            "reservation": found,
            "workspaces": workspaces_panel(found, user, request.get_host(), now)
            if may_use and slurm_hold is None
            else None,
            "workspace_form": WorkspaceForm(),
            "allocations": allocations,
            "parts": parts_of(allocations) if own else (),
            "nodes": _by_node(allocations),
            "own": own,
            "named": named,
            "editable": can_edit(user, found),
            "looming": pending_release(found, now) if own else None,
            "ledger": _ledger(found) if may_see_ledger else None,
            "words": decision_text(found, own=own) if may_see_ledger else [],
            "title": gpus_title(
                [(one.gpu.pool.gpu_class, one.gpu.node.name) for one in allocations]
            ),
            "span": span_text(found.start, found.end, timezone.get_current_timezone()),
            "slurm_hold": slurm_hold,
            "by_slurm": by_slurm,
            "access": node_access(allocations, user) if may_use else (),
            "scripts": any(
                one.gpu.node.isolation != Node.Isolation.NONE for one in allocations
            )
            or (slurm_hold is not None and slurm_hold.runs_jobs),
            "price_sum": price_of(found, allocations),
            "length_seconds": int((found.end - found.start).total_seconds()),
            "frozen": found.kind == "flex" and now.timestamp() >= freezes_at,
            "freezes_at": datetime.fromtimestamp(freezes_at, tz=UTC),
            **_past_context(found, allocations, now, measured=not by_slurm),
            **people,
            **displaced(found, allocations, user, now),
            "repeat": _repeat(found),
            "refused": refused_form(request, found.pk),
            "config": {
                "id": found.pk,
                "version": found.version,
                "zone": timezone.get_current_timezone_name(),
                "start": wall(found.start),
                "end": wall(found.end),
                # To the second, because an unchanged value is sent back as it was
                # booked.
                "start_at": iso(found.start),
                "end_at": iso(found.end),
                "grid_seconds": policy.grid_seconds,
                "gpu_ids": [allocation.gpu_id for allocation in allocations],
            },
        },
    )
    return allow_entry(response)


def _past_context(
    found: Reservation, allocations: list[Allocation], now: datetime, *, measured: bool
) -> dict[str, Any]:
    """Return its totals and its charts, if it has begun.

    Args:
        measured: whether there are readings of its Gpus. Slurm reports none.
    """
    usage = reservation_usage(found, now=now)
    if usage is None:
        return {}
    if not measured:
        return {"usage": usage, "usage_so_far": found.state in State.live()}
    gpus = [allocation.gpu for allocation in allocations]
    return {
        "usage": usage,
        "usage_so_far": found.state in State.live(),
        "history": charts_page(
            f"/reservations/{found.pk}/history",
            whole=(found.start, max(found.end, found.start + timedelta(minutes=1))),
            memory_total_bytes=max((gpu.memory_total_bytes for gpu in gpus), default=0),
            power_limit_watts=max(
                (gpu.power_limit_watts or 0 for gpu in gpus), default=0
            ),
            per_gpu=len(gpus) > 1,
        ),
    }


def _repeat(found: Reservation) -> dict[str, str]:
    """Return the first start and end of a series like it: itself, or a week later."""
    shift = timedelta(days=7 if found.state == State.ACTIVE else 0)
    return {"start": wall(found.start + shift), "end": wall(found.end + shift)}


def price_of(found: Reservation, allocations: Sequence[Allocation]) -> str:
    """Return the sum behind the cost; the cost alone without GPUs."""
    if not allocations:
        return credits_text(found.cost_gpu_seconds)
    held: dict[str, tuple[int, int]] = {}
    for one in allocations:
        pool = one.gpu.pool
        seconds, _ = held.get(pool.gpu_class, (0, 0))
        length = int((one.end - one.start).total_seconds())
        held[pool.gpu_class] = (seconds + length, pool.weight)
    parts = [(name, seconds, weight) for name, (seconds, weight) in held.items()]
    return price_sum(parts, found.cost_gpu_seconds)


def _by_node(allocations: list[Any]) -> list[dict[str, Any]]:
    """Return [{node, gpus}] in the order of the Allocations."""
    nodes: dict[str, list[Any]] = {}
    for allocation in allocations:
        nodes.setdefault(allocation.gpu.node.name, []).append(allocation.gpu)
    return [{"name": name, "gpus": gpus} for name, gpus in nodes.items()]


def _ledger(found: Reservation) -> dict[str, Any]:
    """Return the rows and their sum."""
    rows = list(found.ledger.order_by("at", "pk"))
    held = sum(row.gpu_seconds for row in rows if row.kind != LedgerEntry.Kind.CHARGE)
    charged = sum(
        row.gpu_seconds for row in rows if row.kind == LedgerEntry.Kind.CHARGE
    )
    return {"rows": rows, "held": held, "charged": charged}
