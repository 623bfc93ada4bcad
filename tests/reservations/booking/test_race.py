"""Eight processes want the same Gpus at the same time, on a real database."""

import json
import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from urllib.parse import quote

import pytest
from django.db import connection

from reservations.models import Account, Allocation, LedgerEntry, Notice, Reservation
from reservations.store.booking_facts import site_policy
from reservations.store.booking_snapshot import account_path, quota_infos
from tests import early
from tests.factories import make_account, make_gpus, make_membership, make_user
from tests.reservations.conftest import at, balance

PROCESSES = 8
REQUESTS = 30


def database_url() -> str:
    """Return the address of the test database for another process."""
    settings = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{settings['NAME']}"
    login = quote(str(settings["USER"]))
    if settings["PASSWORD"]:
        login += f":{quote(str(settings['PASSWORD']))}"
    place = f"{settings['HOST'] or 'localhost'}:{settings['PORT'] or 5432}"
    return f"postgres://{login}@{place}/{settings['NAME']}"


def run_racers(names: list[str], requests: int) -> list[dict]:
    """Run racers of these names together; each one's report."""
    env = os.environ | {"DATABASE_URL": database_url(), "GPUPORTAL_VAR": early.VAR}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.reservations.booking.racer"),
            *(str(requests), *names),
        ],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reports: list[dict] = json.loads(done.stdout.splitlines()[-1])
    assert len(reports) == len(names)
    return reports


@pytest.mark.timeout(420)
@pytest.mark.django_db(transaction=True)
def test_eight_processes_never_book_twice_nor_fail(valkey_url) -> None:
    root = make_account("institute")
    for name in ("vision", "nlp"):
        make_account(name, parent=root)
    # Tight, so that the quotas are raced for too.
    Account.objects.filter(name="vision").update(quota_gpu_seconds=10 * 8 * 3600)
    policy = site_policy()
    make_gpus(3)
    for number in range(PROCESSES):
        make_membership(make_user(f"racer{number}"), ("vision", "nlp")[number % 2])

    reports = run_racers([f"racer{n}" for n in range(PROCESSES)], REQUESTS)

    errors = [error for report in reports for error in report["errors"]]
    assert not errors, errors[0]
    came = sum((Counter(report["came"]) for report in reports), Counter())
    assert sum(came.values()) == PROCESSES * REQUESTS
    assert came["booked"] > PROCESSES and came["gpu-taken"] > PROCESSES, came
    displaced = Reservation.objects.filter(state="displaced")
    assert displaced.count() == Notice.objects.count() > 0
    assert_no_overlap()
    assert_books_balance()
    group = Account.objects.get(name="vision")
    member = group.memberships.first()
    for info in quota_infos(member, account_path(member), at(0), at(23), policy=policy):
        held = sum(s.rate_permille * (s.end - s.start) for s in info.spends) // 1000
        assert held <= info.quota_gpu_seconds, (info.account, held)
    live = Reservation.objects.live().count()

    moved = sum((Counter(r["came"]) for r in run_racers(["tick"] * 3, 31)), Counter())

    # Three workers tick at once: each transition happens once, and each charge is one.
    # Displaced bookings wait, and are placed again if the day has room.
    ended = Reservation.objects.filter(state="ended").count()
    assert moved["ended"] == ended >= live
    assert moved["started"] >= live
    assert_no_overlap()
    assert_books_balance()
    charges = LedgerEntry.objects.filter(kind=LedgerEntry.Kind.CHARGE, reason="ended")
    assert charges.count() == ended


def assert_no_overlap() -> None:
    """Look at every pair of neighbours on every Gpu."""
    rows = list(Allocation.objects.filter(live=True).order_by("gpu_id", "start"))
    for one, next_one in pairwise(rows):
        if one.gpu_id == next_one.gpu_id:
            assert one.end <= next_one.start, (one, next_one)


def assert_books_balance() -> None:
    """HOLD + RELEASE is the cost of what is booked and nothing for the rest."""
    assert LedgerEntry.objects.exists()
    for row in Reservation.objects.all():
        holds = row.state in ("confirmed", "active")
        expected = row.cost_gpu_seconds if holds else 0
        held, charged = balance(row)
        assert held == expected, row
        assert charged >= (row.cost_gpu_seconds if row.state == "ended" else 0)
        live = row.allocations.filter(live=True).count()
        assert bool(live) == holds
