"""The search of the top bar: what a User may find for a few letters."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from django.db.models import Q, QuerySet
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext
from django.utils.translation import gettext_noop as noop

from gpuportal.pages.context import MAIN_PAGES
from placement.models import Job
from reservations.models import Reservation, SitePolicy, User
from reservations.rules.figures import gpus_title, span_text
from reservations.store.access import visible_reservations
from telemetry.models import Gpu, Node
from telemetry.protocol.sentences import joined

PER_KIND = 6
LONGEST_QUERY = 80
MORE_PAGES = (
    ("me", noop("Settings")),
    ("help", noop("Help")),
    ("notices", noop("Notifications")),
    ("waiting", noop("Waitlist")),
    ("alerts", noop("Alerts")),
    ("free-hours", noop("When is it free?")),
    ("offers", noop("Offers")),
    ("series", noop("Series")),
    ("serves", noop("Served models")),
)
PAGE_WORDS = {
    "board": "live gpus now utilization memory temperature",
    "calendar": "book reserve reservation free week day",
    "mine": "mine my own reservations bookings next quota home",
    "help": "help glossary words tour shortcuts keys credits firm flex",
    "notices": "notices notifications messages mails",
    "waiting": "waitlist waiting request queue",
    "plan": "model memory estimate fit parallel split",
    "jobs": "run train log stop script recipe",
    "standing": "quota rank fair share ledger usage hours",
    "free-hours": "heat map week history busy free hours",
    "offers": "give away swap hand on exchange booking",
    "series": "repeat repeated bookings recurring every week daily weekdays again",
    "serves": "serve onnx inference model deploy endpoint infer",
    "alerts": "intruder squatter idle broken xid findings warnings",
    "me": "settings theme api tokens ssh keys password account",
}


@dataclass(frozen=True)
class FoundItem:
    """One thing found."""

    kind: str
    """gpu, node, person, job, reservation or page."""
    title: str
    detail: str
    url: str


def find(query: str, user: User) -> list[FoundItem]:
    """Return everything that matches the query and that the User may see, pages
    first."""
    query = query.strip()[:LONGEST_QUERY]
    if not query:
        return []
    return [
        *_pages(query),
        *_nodes(query),
        *_gpus(query),
        *_people(query, user),
        *_reservations(query, user),
        *_jobs(query, user),
    ]


def as_json(hits: Iterable[FoundItem]) -> list[dict[str, str]]:
    """Return hits for the search box."""
    return [asdict(hit) for hit in hits]


def _pages(query: str) -> Iterator[FoundItem]:
    asked = query.lower().split()
    for name, label in (*MAIN_PAGES, *MORE_PAGES):
        shown = gettext(label)
        words = f"{shown} {label} {PAGE_WORDS[name]}".lower().split()
        if all(any(each.startswith(word) for each in words) for word in asked):
            yield FoundItem("page", shown, gettext("page"), reverse(name))


def _nodes(query: str) -> Iterator[FoundItem]:
    for node in Node.objects.in_service().filter(name__icontains=query)[:PER_KIND]:
        url = f"{reverse('board')}?q={node.name}"
        yield FoundItem("node", node.name, gettext("node"), url)


def _gpus(query: str) -> Iterator[FoundItem]:
    wanted = (
        Q(name__icontains=query)
        | Q(uuid__icontains=query)
        | Q(pool__gpu_class__icontains=query)
        | Q(node__name__icontains=query)
    )
    one = re.fullmatch(r"([\w-]+):(\d{1,3})", query)
    if one:
        wanted = Q(node__name__iexact=one[1], index=int(one[2]))
    gpus: QuerySet[Gpu] = Gpu.objects.filter(wanted).select_related("node", "pool")
    for gpu in gpus[:PER_KIND]:
        yield FoundItem(
            "gpu", str(gpu), gpu.pool.gpu_class, reverse("gpu", args=[gpu.pk])
        )


def _people(query: str, user: User) -> Iterator[FoundItem]:
    people = User.objects.filter(
        Q(username__icontains=query) | Q(display_name__icontains=query), is_active=True
    )
    if not (user.is_operator or SitePolicy.current().names_visible):
        people = people.filter(pk=user.pk)
    for person in people.order_by("username").prefetch_related("memberships__account")[
        :PER_KIND
    ]:
        groups = ", ".join(str(m.account) for m in person.memberships.all() if m.active)
        url = f"{reverse('board')}?q={person.username}"
        yield FoundItem("person", str(person), groups or gettext("no group"), url)


def _reservations(query: str, user: User) -> Iterator[FoundItem]:
    """Find a reservation by its number: "387", "#387" or "reservation 387"."""
    number = re.fullmatch(r"(?:reservation\s*|booking\s*)?#?(\d{1,17})", query.lower())
    if number is None:
        return
    rows = Reservation.objects.filter(visible_reservations(user), pk=int(number[1]))
    rows = rows.prefetch_related("allocations__gpu__node", "allocations__gpu__pool")
    for row in rows:
        held = row.allocations.all()
        gpus = gpus_title([(one.gpu.pool.gpu_class, one.gpu.node.name) for one in held])
        when = span_text(row.start, row.end, timezone.get_current_timezone())
        url = reverse("reservation", args=[row.pk])
        yield FoundItem("reservation", joined([f"#{row.pk}", gpus]), when, url)


def _jobs(query: str, user: User) -> Iterator[FoundItem]:
    jobs: QuerySet[Job] = Job.objects.visible_to(user)
    number = query.removeprefix("#")
    wanted = Q(name__icontains=query)
    if number.isdecimal() and len(number) < 18:
        wanted |= Q(pk=int(number))
    for job in jobs.filter(wanted)[:PER_KIND]:
        yield FoundItem(
            "job", f"#{job.pk} {job.name}", job.state, reverse("job", args=[job.pk])
        )
