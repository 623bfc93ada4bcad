"""Print the content of a database as JSON, which an upgrade must not change.

    python -m tests.releases.figures INSTANT

with the faults of its books.

``INSTANT`` (ISO 8601, aware) is the time for which ranks are computed, because usage
decays over time.
"""

import json
import sys
from datetime import datetime
from typing import Any

import django

PEOPLE = ("alice", "omar")
"""A student and the operator of the demo lab."""
PAGES = (
    *("/", "/calendar/", "/free/", "/mine/", "/help/", "/alerts/", "/notices/"),
    *("/standing/", "/standing/ledger.csv", "/waiting/", "/offers/", "/series/"),
    *("/series/new/", "/group/", "/me/", "/me/notices/"),
    *("/plan/", "/plan/kept/", "/jobs/", "/jobs/new/", "/jobs/compare/"),
    *("/jobs/measured/", "/serve/", "/serve/new/", "/api/v1/gpus"),
    *("/manage/", "/manage/accounts/", "/manage/accounts/changes/"),
    *("/manage/audit/", "/manage/closures/", "/manage/closures/new/"),
    *(
        "/manage/courses/",
        "/manage/gpus/",
        "/manage/people/",
        "/manage/policy/booking/",
    ),
    *("/manage/pools/", "/manage/replay/", "/manage/reports/", "/manage/walls/"),
    *("/admin/", "/admin/reservations/reservation/", "/admin/placement/job/"),
    *("/admin/telemetry/gpu/", "/admin/reservations/ledgerentry/"),
)
APPS = ("telemetry", "reservations", "placement")


def counts() -> dict[str, int]:
    """Rows of each table of the portal's that has any."""
    from django.apps import apps

    from gpuportal.backup.facts import table_name

    found = {
        table_name(model): model._default_manager.count()
        for app in APPS
        for model in apps.get_app_config(app).get_models(include_auto_created=True)
    }
    return {label: number for label, number in sorted(found.items()) if number}


def paths(now: datetime) -> list[str]:
    """Return the main pages, the week of `now`, and a page of each kind of thing."""
    from placement.models import Job
    from reservations.models import Account, Reservation
    from telemetry.models import Gpu, Node

    gpu, node = Gpu.objects.order_by("pk")[0], Node.objects.order_by("pk")[0]
    return [
        *PAGES,
        f"/calendar/?view=week&date={now.date()}",
        f"/reservations/{Reservation.objects.order_by('pk')[0].pk}/",
        f"/reservations/{Reservation.objects.order_by('-pk')[0].pk}/",
        f"/jobs/{Job.objects.filter(owner__username='alice').order_by('pk')[0].pk}/",
        f"/accounts/{Account.objects.get(name='vision').pk}/history/",
        *(f"/gpus/{gpu.pk}/", f"/nodes/{node.name}/", f"/nodes/{node.name}/history/"),
    ]


def pages(now: datetime) -> dict[str, dict[str, int]]:
    """Return the status of each page for each of ``PEOPLE``."""
    from django.test import Client

    from reservations.models import User

    found: dict[str, dict[str, int]] = {}
    for name in PEOPLE:
        client = Client()
        client.force_login(
            User.objects.get(username=name),
            backend="django.contrib.auth.backends.ModelBackend",
        )
        found[name] = {path: client.get(path).status_code for path in paths(now)}
    return found


def figures(now: datetime) -> dict[str, Any]:
    """Return all of the above for one instant."""
    from gpuportal.backup.facts import balances, ranks

    return {
        "at": now.isoformat(),
        "ledger": balances(),
        "ranks": ranks(now),
        "rows": counts(),
        # Last, because a page may write, such as the time at which it was read.
        "pages": pages(now),
    }


if __name__ == "__main__":
    django.setup()
    from django.test.utils import setup_test_environment

    setup_test_environment()
    from reservations.management.commands.check_books import findings

    at = datetime.fromisoformat(sys.argv[1])
    # The books first, because a page may write.
    found = {"books": list(findings())} | figures(at)
    print(json.dumps(found, indent=1, sort_keys=True))
