"""``/healthz`` and ``/readyz``: whether the portal can work, and whether it does.

``/healthz`` is for a load balancer: it checks that database and broker answer.
``/readyz`` is for an operator's monitoring: it also checks the periodic tasks, the disk
and the migrations. Operators see the same as a banner on every page.
"""

import logging
import shutil
from dataclasses import dataclass
from typing import Any

import redis
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.http import HttpRequest, JsonResponse
from django.utils.translation import gettext
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from gpuportal import ticks
from gpuportal.backup import last_backup
from gpuportal.monitoring import migrations_due

logger = logging.getLogger(__name__)
DISK_SHORT_BYTES = 2**30
"""Logs, results and uploads of jobs would fill the rest within hours."""
NODE_SILENT_SECONDS = 30
"""A node reports every second. After this time it counts as not live."""
GIB = 2**30
NAMES_SHOWN = 3


@login_not_required
@never_cache
@require_safe
def healthz(request: HttpRequest) -> JsonResponse:
    """Answer 200 when database and broker answer, otherwise 503.

    Open to everybody, so it shows only which of the two is away.
    """
    found = {"database": _database_answers(), "broker": _broker_answers()}
    ok = all(found.values())
    return JsonResponse(
        {"status": "ok" if ok else "unavailable", **found}, status=200 if ok else 503
    )


@login_not_required
@never_cache
@require_safe
def readyz(request: HttpRequest) -> JsonResponse:
    """Answer 200 when all of the portal works, otherwise 503.

    Open to everybody, so it shows only true or false for each part. Operators get the
    figures too.
    """
    state = check_health()
    answer: dict[str, Any] = {
        "status": "ok" if state.ok else "unavailable",
        "database": state.database,
        "broker": state.broker,
        "ticks": state.ticking,
        "disk": state.disk_enough,
        "migrations": state.migrated,
    }
    # Logins need the database.
    if state.database and getattr(request.user, "is_operator", False):
        answer |= {
            "tick_age_seconds": {
                task: None if age is None else round(age, 1)
                for task, age in state.tick_ages.items()
            },
            "disk_free_bytes": state.disk_free_bytes,
            "migrations_waiting": state.waiting,
        }
    return JsonResponse(answer, status=200 if state.ok else 503)


@dataclass(frozen=True, slots=True)
class PortalHealth:
    """The state of the portal's parts."""

    database: bool
    broker: bool
    tick_ages: dict[str, float | None]
    """Seconds since each periodic task was last done."""
    disk_free_bytes: int
    waiting: list[str]
    """Migrations that are not applied."""

    @property
    def late(self) -> dict[str, float | None]:
        """The periodic tasks that should have been done by now."""
        return ticks.late(self.tick_ages)

    @property
    def ticking(self) -> bool:
        """Whether every periodic task was done in time."""
        return self.broker and not self.late

    @property
    def disk_enough(self) -> bool:
        """Whether there is room for logs and uploads."""
        return self.disk_free_bytes >= DISK_SHORT_BYTES

    @property
    def migrated(self) -> bool:
        """Whether the database matches this version."""
        return self.database and not self.waiting

    @property
    def ok(self) -> bool:
        """Whether everything works."""
        return self.ticking and self.disk_enough and self.migrated

    def troubles(self) -> list[str]:
        """Return one sentence for each problem that an operator must solve."""
        said = []
        if not self.database:
            said.append(gettext("The database does not answer."))
        if not self.broker:
            said.append(
                gettext("The broker does not answer: nothing is live, no job starts.")
            )
        elif self.late:
            said.append(self._lateness())
        if not self.disk_enough:
            words = gettext(
                "The portal's disk is nearly full: %(free)s GiB are free in %(folder)s."
            )
            free = f"{self.disk_free_bytes / GIB:.2f}"
            said.append(words % {"free": free, "folder": settings.VAR_DIR})
        if backup := last_backup.trouble():
            said.append(backup)
        if self.waiting:
            words = gettext(
                "The database needs an upgrade. Run: %(command)s. Not applied: "
                "%(names)s."
            )
            command = f"{settings.MANAGE_COMMAND} migrate"
            names = ", ".join(self.waiting)
            said.append(words % {"command": command, "names": names})
        return said

    def _lateness(self) -> str:
        words = [
            gettext(
                "The portal's periodic tasks are late: no job starts or ends, and no "
                "reservation begins."
            )
        ]
        if ages := [age for age in self.late.values() if age is not None]:
            since = gettext("Last done %(seconds)s s ago.")
            words.append(since % {"seconds": f"{max(ages):.0f}"})
        words.append(gettext("See gpuportal-worker and gpuportal-beat."))
        # If many are late, all periodic tasks have stopped, and names do not help.
        if len(self.late) <= NAMES_SHOWN:
            late = gettext("Late: %(names)s.")
            words.append(late % {"names": ", ".join(sorted(self.late))})
        return " ".join(words)


def check_health(*, from_a_page: bool = False) -> PortalHealth:
    """Check every part of the portal.

    Args:
        from_a_page: The database was just read, so it need not be asked.
    """
    database = from_a_page or _database_answers()
    broker, ages = True, dict[str, float | None]()
    try:
        ages = ticks.ages()
    except redis.RedisError as error:
        logger.warning("broker: %s", error)
        broker = False
    waiting: list[str] = []
    if database:
        try:
            waiting = migrations_due.recently_waiting()
        except DatabaseError as error:
            logger.warning("database: %s", error)
            database = False
    return PortalHealth(
        database=database,
        broker=broker,
        tick_ages=ages,
        disk_free_bytes=shutil.disk_usage(settings.VAR_DIR).free,
        waiting=waiting,
    )


def clock_is_late() -> bool:
    """Return whether nothing starts or ends now. False if the broker does not
    answer."""
    try:
        return bool(ticks.late(ticks.ages()))
    except redis.RedisError:
        return False


def _database_answers() -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            row: object = cursor.fetchone()
            return row == (1,)
    except DatabaseError as error:
        logger.warning("database: %s", error)
        return False


def _broker_answers() -> bool:
    try:
        return bool(ticks.broker().ping())
    except redis.RedisError as error:
        logger.warning("broker: %s", error)
        return False
