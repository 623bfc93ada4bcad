"""The template context of every page: the top bar, the alerts, the banners."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property, lru_cache
from itertools import chain

import redis
from django.conf import settings
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import get_language, gettext
from django.utils.translation import gettext_noop as noop

from gpuportal.alerts.queries import calling_alerts, steps_taken_against
from gpuportal.monitoring import health
from reservations.accounts.second_factors.queries import policy
from reservations.accounts.second_factors.rules import Demand
from reservations.models import Account, Notice, User
from reservations.notifications.queries import NoticeInfo, notices_of
from reservations.rules.booking_alerts import INTRUDER
from reservations.store.announced_closures import NearMaintenance, near_maintenance
from telemetry.live.broadcast import FRAME_MINUTE
from telemetry.models import Alert, Node
from telemetry.protocol.errors import FrameRefused
from telemetry.protocol.frame import decode
from telemetry.protocol.hardware import NotIsolated
from telemetry.protocol.sentences import Sentence, counted, joined, sentence

THEMES = ("light", "dark")
ALERTS_SHOWN = 8
LATE_SECONDS = 5.0
"""Frames come once a second. Five missing ones show a banner."""
# Name of the address, label. The word in the address bar is the name as well.
MAIN_PAGES = (
    ("board", noop("Board")),
    ("calendar", noop("Calendar")),
    ("mine", noop("My reservations")),
    ("plan", noop("Plan")),
    ("jobs", noop("Jobs")),
    ("standing", noop("Standing")),
)
PARTS_OF = {"jobs": ("serves",), "mine": ("offers", "series")}
"""Pages that belong to a main page of a different address."""

WHY_NOT_ISOLATED = {
    NotIsolated.UNKNOWN: sentence("The node has not reported why."),
    NotIsolated.NOT_ROOT: sentence("The node worker there does not run as root."),
    NotIsolated.PORTAL: sentence(
        "“make run” was started without own scripts. To allow them, start it with: "
        "make run ARGS='--own-scripts yes'"
    ),
    NotIsolated.SCRIPTS: sentence(
        "GPUPORTAL_ALLOW_SCRIPTS is set in node.env there. Remove that line."
    ),
    NotIsolated.UNITS: sentence(
        "GPUPORTAL_ISOLATION is “enforced” there, but systemd cannot run each job in "
        "its own unit."
    ),
}
"""Why a Node does not keep Jobs apart, and what to do about it."""
MOST_NAMES = 3
"""Nodes that a sentence names. More of them are counted."""


@dataclass(frozen=True)
class NavEntry:
    """One link of the top bar."""

    label: str
    url: str
    current: bool


class SiteContext:
    """Lazy: a page without a top bar costs no query."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request

    @property
    def time_zone(self) -> str:
        """Name of the zone in which every page shows times."""
        return timezone.get_current_timezone_name()

    @property
    def site_zone(self) -> str:
        """Name of the site's own zone."""
        return settings.TIME_ZONE

    @property
    def languages(self) -> list[tuple[str, str]]:
        """(code, own name) of each language except the page's. Empty on the answer of a
        form, because the choice could not return to it.
        """
        if self.request.method not in {"GET", "HEAD"}:
            return []
        shown = get_language()
        return [pair for pair in settings.LANGUAGES if pair[0] != shown]

    @property
    def catalogue(self) -> str:
        """Script of the words in the page's language; "" for English."""
        shown = get_language()
        return "" if shown in {None, "en"} else f"js/words/{shown}.js"

    @property
    def contact(self) -> str:
        """The site's contact for users; "" if it is not set."""
        return settings.PORTAL_CONTACT

    @property
    def now(self) -> float:
        """Unix seconds. The browser computes relative times from this clock."""
        return round(timezone.now().timestamp(), 3)

    @property
    def theme(self) -> str:
        """The chosen theme, or "" for the system's."""
        theme = self.request.COOKIES.get("theme", "")
        return theme if theme in THEMES else ""

    @cached_property
    def nav(self) -> list[NavEntry]:
        """Links to the main pages. Those of the operator and of heads come last."""
        entries = []
        own: list[tuple[str, str]] = []
        if getattr(self.request.user, "is_operator", False):
            own = [("manage", gettext("Manage"))]
        elif self.headed:
            own = [("group", gettext("Group"))]
        for name, label in (*MAIN_PAGES, *own):
            url = reverse(name)
            here = self.request.path
            parts = (url, *(reverse(part) for part in PARTS_OF.get(name, ())))
            current = here == url if url == "/" else here.startswith(parts)
            entries.append(NavEntry(gettext(label), url, current))
        return entries

    @cached_property
    def nodes(self) -> list[tuple[str, bool, str, str]]:
        """(name, simulated, isolation, reason for missing isolation) of each Node."""
        return list(
            Node.objects.run_by_portal().values_list(
                "name", "simulated", "isolation", "not_isolated"
            )
        )

    @cached_property
    def simulated(self) -> bool:
        """Whether some Gpus are simulated."""
        return any(simulated for _, simulated, _, _ in self.nodes)

    @property
    def own_ids(self) -> bool:
        """Whether Jobs of people without a Unix user get an id of their own."""
        return bool(settings.OWN_IDS)

    @property
    def unisolated_scripts(self) -> bool:
        """Whether own scripts of everybody run as the user of the node's worker."""
        return bool(settings.ALLOW_UNISOLATED_SCRIPTS)

    @cached_property
    def not_isolated(self) -> dict[str, list[str]]:
        """Nodes where own scripts are off, by the reason that they report."""
        found: dict[str, list[str]] = {}
        if settings.ALLOW_UNISOLATED_SCRIPTS:
            return found
        for name, _, isolation, why in self.nodes:
            if isolation == Node.Isolation.NONE:
                found.setdefault(why, []).append(name)
        return found

    @property
    def own_scripts_off(self) -> Sentence | None:
        """Return the banner's text about own scripts, with reasons for operators."""
        if not self.not_isolated:
            return None
        if not getattr(self.request.user, "is_operator", False):
            names = sorted(chain.from_iterable(self.not_isolated.values()))
            return sentence(
                "Only ready recipes run on {nodes}, no own scripts.",
                nodes=_nodes_text(names),
            )
        return joined(
            sentence(
                "Own scripts are switched off on {nodes}, because jobs are not "
                "isolated there. {why}",
                nodes=_nodes_text(names),
                why=WHY_NOT_ISOLATED[NotIsolated(why)],
            )
            for why, names in sorted(self.not_isolated.items())
        )

    @property
    def second_factor_asked(self) -> bool:
        """Whether the portal asks this operator to set up a second factor."""
        asked = getattr(self.request, "second_factor_demand", Demand.NONE)
        here = self.request.path == reverse("second-factors")
        return asked is Demand.RECOMMENDED and not here

    @property
    def second_factor_until(self) -> datetime | None:
        """Until when the portal works without it; None: it is not required."""
        rules, user = policy(), self.request.user
        asked_at = getattr(user, "second_factor_asked_at", None)
        if asked_at is None or rules.operators != "required":
            return None
        return rules.ends_at(asked_at)

    @cached_property
    def headed(self) -> list[Account]:
        """Accounts of which the User is the head."""
        if not self.request.user.is_authenticated:
            return []
        return list(
            Account.objects.filter(
                memberships__user=self.request.user,
                memberships__is_head=True,
                memberships__active=True,
            )
        )

    @cached_property
    def alerts(self) -> list[Alert]:
        """Alerts for this User, worst first: one more than the menu shows."""
        user = self.request.user
        if not isinstance(user, User):
            return []
        return list(calling_alerts(user, timezone.now())[: ALERTS_SHOWN + 1])

    @cached_property
    def alert_count(self) -> int:
        """Number of these alerts."""
        user = self.request.user
        if len(self.alerts) <= ALERTS_SHOWN or not isinstance(user, User):
            return len(self.alerts)
        return calling_alerts(user, timezone.now()).count()

    @cached_property
    def notices(self) -> list[NoticeInfo]:
        """Unread notices of this User, newest first."""
        user = self.request.user
        if not isinstance(user, User):
            return []
        return notices_of(user, unread=True, most=ALERTS_SHOWN)

    @cached_property
    def notice_count(self) -> int:
        """Number of unread notices."""
        user = self.request.user
        if len(self.notices) < ALERTS_SHOWN or not isinstance(user, User):
            return len(self.notices)
        return Notice.objects.unread(user).count()

    @property
    def bell_count(self) -> int:
        """The bell's number: open alerts and unread notices."""
        return self.alert_count + self.notice_count

    @cached_property
    def accused(self) -> list[Alert]:
        """Alerts in which this User's process is the intruder."""
        user = self.request.user
        suspects = [alert for alert in self.alerts if alert.rule == INTRUDER]
        if not suspects or not isinstance(user, User):
            return []
        told = set(steps_taken_against(user).values_list("alert_id", flat=True))
        return [alert for alert in suspects if alert.pk in told]

    @cached_property
    def closing(self) -> list[NearMaintenance]:
        """Maintenance and blackouts that run or begin soon."""
        if not isinstance(self.request.user, User):
            return []
        return near_maintenance(timezone.now())

    @cached_property
    def troubles(self) -> list[str]:
        """Problems of the portal, for operators."""
        if not getattr(self.request.user, "is_operator", False):
            return []
        return health.check_health(from_a_page=True).troubles()

    @cached_property
    def clock_late(self) -> bool:
        """Whether no job starts or ends now, because the periodic tasks have
        stopped."""
        return health.clock_is_late()

    @cached_property
    def late_seconds(self) -> float | None:
        """Age of the newest live frame in seconds if it is late; None otherwise."""
        if not self.nodes:
            return None
        age_seconds = frame_age_seconds()
        return (
            None if age_seconds is None or age_seconds < LATE_SECONDS else age_seconds
        )


def _nodes_text(names: Sequence[str]) -> Sentence:
    if len(names) > MOST_NAMES:
        return counted("{n} node", "{n} nodes", len(names))
    return joined([joined(names[:-1], by=", "), names[-1]], by=sentence(" and "))


def frame_age_seconds() -> float | None:
    """Return the seconds since ingest made the newest frame; None without a frame."""
    frames = read_frames(1)
    if not frames:
        return None
    try:
        return max(0.0, time.time() - decode(frames[0]).server_at)
    except FrameRefused:
        return None


def read_frames(most: int) -> list[bytes]:
    """Return the newest live frames, newest first.

    There are none if the broker does not answer, because pages must open without it.
    """
    try:
        found = _broker(settings.REDIS_URL).lrange(FRAME_MINUTE, 0, most - 1)
    except redis.RedisError:
        return []
    return list(found)  # type: ignore[arg-type]


@lru_cache(maxsize=4)
def _broker(url: str) -> redis.Redis:
    """Return the process's client for pages: a connection lasts for many pages.

    Its limits are shorter than those of ``ticks.broker``, because a person waits.
    """
    return redis.Redis.from_url(url, socket_timeout=0.5, socket_connect_timeout=0.5)


def site(request: HttpRequest) -> dict[str, object]:
    """Return the site as every template sees it (LoginView takes "site")."""
    return {"portal": SiteContext(request)}
