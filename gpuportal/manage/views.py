"""The first page of Manage: open tasks of the operator."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlencode

from django.conf import settings
from django.db.models import Exists, OuterRef
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext, ngettext, ngettext_lazy
from django.views.decorators.http import require_safe

from gpuportal.alerts.queries import visible_alerts
from gpuportal.backup import last_backup
from gpuportal.manage.audit_text import AuditRow, rows_of
from gpuportal.monitoring import health
from gpuportal.pages.context import frame_age_seconds
from reservations.accounts.invitations import UNUSABLE
from reservations.accounts.tree.outlook_queries import pool_infos
from reservations.accounts.tree.queries import read_tree
from reservations.accounts.tree.tree_outlook import promises_of
from reservations.models import (
    Account,
    AuditEntry,
    Delivery,
    Membership,
    NoticeSettings,
    Reservation,
    User,
    WaitingRequest,
)
from reservations.store.access import operator_required, reader
from reservations.store.booking_facts import site_policy
from telemetry.inventory.broker_log import refused_nodes
from telemetry.inventory.node_identity import doubtful_nodes
from telemetry.models import Gpu, Node
from telemetry.protocol.units import format_duration

LATE_FRAME_SECONDS = 10.0
WAITING_LONG = timedelta(days=1)
FAILED_SINCE = timedelta(days=1)
ALERTS_SHOWN = 5
ACTS_SHOWN = 6
NAMES_SHOWN = 6


@dataclass(frozen=True)
class OperatorTask:
    """One task of the operator."""

    icon: str
    title: str
    text: str
    url: str
    act: str
    """Text of its link."""
    urgent: bool = False


@require_safe
@operator_required
def home(request: HttpRequest) -> HttpResponse:
    """Show open tasks, the parts in order, and the latest events."""
    now = timezone.now()
    calling = visible_alerts(reader(request), now).calling(now)
    needs = list(needs_of(now, alerts=calling.count()))
    last = AuditEntry.objects.select_related("actor")[:ACTS_SHOWN]
    acts: list[AuditRow] = rows_of(last)
    page = {
        "tab": "home",
        "needs": sorted(needs, key=lambda need: not need.urgent),
        "urgent": sum(need.urgent for need in needs),
        "figures": figures(now),
        "acts": acts,
        "backup": last_backup.summary(),
    }
    return render(request, "gpuportal/manage/manage_home.html", page)


def figures(now: datetime) -> list[tuple[str, str, str]]:
    """Return (label, figure, address) of the lab as it is now."""
    nodes = Node.objects.in_service().count()
    people = User.objects.filter(is_active=True).count()
    running = Reservation.objects.live().filter(start__lte=now, end__gt=now).count()
    ahead = Reservation.objects.live().filter(start__gt=now).count()
    return [
        (gettext("nodes"), str(nodes), reverse("manage-pools")),
        (gettext("GPUs"), str(Gpu.objects.shown().count()), reverse("manage-gpus")),
        (gettext("people"), str(people), reverse("manage-people")),
        (gettext("bookings now"), str(running), reverse("calendar")),
        (gettext("bookings ahead"), str(ahead), reverse("calendar")),
        (
            gettext("waiting requests"),
            str(WaitingRequest.objects.waiting().count()),
            reverse("waiting"),
        ),
    ]


def needs_of(now: datetime, *, alerts: int) -> Iterator[OperatorTask]:
    """Collect all tasks of the operator.

    Args:
        alerts: how many open alerts are neither acknowledged nor snoozed.
    """
    if alerts:
        yield OperatorTask(
            "alert",
            ngettext("%(n)s open alert", "%(n)s open alerts", alerts) % {"n": alerts},
            gettext("Not acknowledged yet."),
            reverse("alerts"),
            gettext("See alerts"),
            urgent=True,
        )
    for trouble in health.check_health(from_a_page=True).troubles():
        title, _, text = trouble.partition(": ")
        yield OperatorTask(
            "alert",
            title.rstrip("."),
            text[:1].upper() + text[1:],
            reverse("board"),
            gettext("See the board"),
            urgent=True,
        )
    yield from _machines(now)
    yield from _unknown_broker_users()
    yield from _requests(now)
    yield from _people()
    yield from _oversold()
    yield from _deliveries(now)


def _machines(now: datetime) -> Iterator[OperatorTask]:
    """Yield nodes that do not report, late live data, Gpus that are lost or missing."""
    nodes = list(
        Node.objects.run_by_portal().values_list("name", "last_seen_at", "maintenance")
    )
    limit = now - timedelta(seconds=health.NODE_SILENT_SECONDS)
    silent = [
        name
        for name, seen, maintenance in nodes
        if not maintenance and (seen is None or seen < limit)
    ]
    if silent:
        yield OperatorTask(
            "stale",
            ngettext("%(n)s node not live", "%(n)s nodes not live", len(silent))
            % {"n": len(silent)},
            gettext("No data arrives from %(names)s. Is the worker running there?")
            % {"names": _first_names(silent)},
            f"{reverse('alerts')}?{urlencode({'node': silent[0]})}",
            gettext("See alerts"),
            urgent=True,
        )
    if not nodes:
        yield OperatorTask(
            "node",
            gettext("No node is enrolled"),
            gettext("One line on a machine with GPUs makes it a node."),
            reverse("manage-machine-add"),
            gettext("Add a machine"),
        )
    for node, warnings in doubtful_nodes(now):
        yield OperatorTask(
            "alert",
            gettext("%(name)s: two machines, or a cloned disk") % {"name": node.name},
            " ".join(warnings),
            reverse("node", args=[node.name]),
            gettext("See the node"),
            urgent=True,
        )
    age_seconds = frame_age_seconds() if nodes else None
    if age_seconds is not None and age_seconds > LATE_FRAME_SECONDS:
        yield OperatorTask(
            "clock",
            gettext("Live data is late"),
            gettext("The newest reading is %(age)s old. Is the ingest process running?")
            % {"age": format_duration(age_seconds)},
            reverse("board"),
            gettext("See the board"),
            urgent=True,
        )
    gone = [
        str(gpu)
        for gpu in Gpu.objects.shown().select_related("node")
        if (gpu.lost or not gpu.present) and gpu.replaced_by_id is None
    ]
    if gone:
        yield OperatorTask(
            "lost",
            ngettext(
                "%(n)s GPU lost or missing", "%(n)s GPUs lost or missing", len(gone)
            )
            % {"n": len(gone)},
            gettext("%(gpus)s: restart the node, replace the GPU or retire it.")
            % {"gpus": _first_names(gone)},
            f"{reverse('manage-gpus')}?state=missing",
            gettext("See GPUs"),
            urgent=True,
        )


def _unknown_broker_users() -> Iterator[OperatorTask]:
    """Yield names that the broker refuses and that are no node in service.

    These are a renamed machine, one that was never enrolled, and one that was retired.
    Enrolled nodes have an Alert.
    """
    refused = refused_nodes()
    known = dict(Node.objects.filter(name__in=refused).values_list("name", "retired"))
    for name in sorted(refused)[:NAMES_SHOWN]:
        if known.get(name) is False:
            continue
        one = refused[name]
        ago = format_duration(one.age_seconds)
        if name in known:
            why = gettext(
                "It is retired. Stop its worker, or enrol it again with --renew."
            )
        else:
            why = gettext(
                "No node of that name is enrolled. Enrol it on the portal with: "
                "sh deploy/enroll %(name)s"
            ) % {"name": name}
        origin = (
            gettext("It came from %(address)s.") % {"address": one.address}
            if one.address
            else gettext("It came from an unknown address.")
        )
        yield OperatorTask(
            "node",
            gettext("%(name)s was refused by the broker %(ago)s ago")
            % {"name": name, "ago": ago},
            f"{why} {origin}",
            reverse("manage-pools"),
            gettext("See nodes"),
        )


def _requests(now: datetime) -> Iterator[OperatorTask]:
    """Yield requests that have waited for long."""
    old = WaitingRequest.objects.waiting().filter(created_at__lte=now - WAITING_LONG)
    count = old.count()
    if count:
        yield OperatorTask(
            "queued",
            ngettext(
                "%(n)s request waiting for more than a day",
                "%(n)s requests waiting for more than a day",
                count,
            )
            % {"n": count},
            gettext(
                "Free time may be short, or a request asks for more than the lab has."
            ),
            reverse("waiting"),
            gettext("See the waitlist"),
        )


def _people() -> Iterator[OperatorTask]:
    """Yield tasks about people: no group at all; people who cannot sign in or have no
    group or Unix user.
    """
    if not Account.objects.exists():
        yield OperatorTask(
            "users",
            gettext("No group yet"),
            gettext("Make a group, then add its people: nobody can book without one."),
            reverse("manage-accounts"),
            gettext("Make a group"),
        )
    people = User.objects.filter(is_active=True, erased_at=None)
    own = Membership.objects.filter(user=OuterRef("pk"), active=True)
    isolated = Node.objects.exclude(isolation=Node.Isolation.NONE).exists()
    kinds = [
        (
            "new",
            people.filter(password__startswith=UNUSABLE, identities=None),
            ngettext_lazy(
                "%(n)s person cannot sign in yet",
                "%(n)s people cannot sign in yet",
                "n",
            ),
            gettext("A password link lets them in."),
        ),
        (
            "nowhere",
            people.filter(~Exists(own), is_superuser=False),
            ngettext_lazy("%(n)s person in no group", "%(n)s people in no group", "n"),
            gettext("They can look, but not book."),
        ),
    ]
    if isolated:
        kinds.append(
            (
                "unmapped",
                people.filter(unix_user="", is_superuser=False).filter(Exists(own)),
                ngettext_lazy(
                    "%(n)s person without a Unix user",
                    "%(n)s people without a Unix user",
                    "n",
                ),
                gettext("They cannot run their own scripts on isolated nodes."),
            )
        )
    if not settings.LOGIN_SETTINGS.passwords:
        # Their first sign-in at the identity provider lets them in.
        kinds = [row for row in kinds if row[0] != "new"]
    for kind, rows, what, why in kinds:
        names = list(rows.values_list("username", flat=True)[: NAMES_SHOWN + 1])
        if names:
            count = len(names) if len(names) <= NAMES_SHOWN else rows.count()
            yield OperatorTask(
                "users",
                what % {"n": count},
                f"{_first_names(names, count)}. {why}",
                f"{reverse('manage-people')}?kind={kind}",
                gettext("See people"),
            )


def _oversold() -> Iterator[OperatorTask]:
    """Yield pools whose quotas add up to more than they hold."""
    policy = site_policy()
    found = promises_of(
        read_tree(), pool_infos(), quota_gpu_seconds=policy.quota_gpu_seconds
    )
    oversold = [one.pool.name for one in found if not one.kept]
    if oversold:
        yield OperatorTask(
            "standing",
            ngettext(
                "Quotas exceed %(n)s pool", "Quotas exceed %(n)s pools", len(oversold)
            )
            % {"n": len(oversold)},
            gettext(
                "%(pools)s: if everybody books their whole quota, some will "
                "find no free time."
            )
            % {"pools": _first_names(oversold)},
            reverse("manage-accounts"),
            gettext("See quotas"),
        )


def _deliveries(now: datetime) -> Iterator[OperatorTask]:
    """Yield mails and webhook calls that were not accepted."""
    failed = Delivery.objects.filter(
        state=Delivery.State.FAILED, done_at__gte=now - FAILED_SINCE
    )
    count = failed.count()
    if count:
        why = failed.order_by("-done_at").values_list("error", flat=True).first()
        yield OperatorTask(
            "bell",
            ngettext(
                "%(n)s notice not delivered since yesterday",
                "%(n)s notices not delivered since yesterday",
                count,
            )
            % {"n": count},
            gettext("The last error: %(why)s.") % {"why": why or gettext("unknown")},
            f"{reverse('manage-audit')}?area=people",
            gettext("See the log"),
        )
    off = NoticeSettings.objects.exclude(webhook_disabled_at=None).count()
    if off:
        yield OperatorTask(
            "link",
            ngettext(
                "%(n)s webhook switched off after failures",
                "%(n)s webhooks switched off after failures",
                off,
            )
            % {"n": off},
            gettext(
                "The owners have been notified. They can switch them on again in their "
                "settings."
            ),
            f"{reverse('manage-audit')}?q=webhook",
            gettext("See the log"),
        )


def _first_names(names: list[str], count: int = 0) -> str:
    """Return the first few names, and how many more there are."""
    more = max(count, len(names)) - min(len(names), NAMES_SHOWN)
    shown = ", ".join(names[:NAMES_SHOWN])
    return (
        gettext("%(shown)s and %(n)s more") % {"shown": shown, "n": more}
        if more
        else shown
    )
