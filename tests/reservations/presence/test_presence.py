"""A check-in by a click, Keep with its time, early release: announced where it
helps.
"""

from datetime import timedelta
from typing import Any

from django.test import Client
from django.utils import timezone

from gpuportal.board.board_snapshot import holders_for, load_board, viewer_of
from reservations.models import AuditEntry, Reservation, SitePolicy
from reservations.presence.release_warnings import next_release
from reservations.presence.rules import (
    KERNEL_WORK_SECONDS,
    MinuteInfo,
    idle_clock_start,
)
from reservations.rules.policy import Policy
from tests.factories import make_gpus, make_reservation
from tests.reservations.calling import Caller
from tests.reservations.conftest import NOW

MINUTE = timedelta(minutes=1)
HOUR = 60 * MINUTE


def test_a_release_looms_by_the_rules_that_are_on():
    known: dict[str, Any] = {
        "start": NOW,
        "checked_in_at": None,
        "blind_seconds": 120,
        "idle_warned_at": None,
        "keep_used": False,
        "now": NOW + MINUTE,
    }
    first = next_release(**known, policy=Policy())
    assert first is not None and first.release_at == NOW + 17 * MINUTE
    assert first.unless == "unless a job starts or you press “I’m here”"
    assert next_release(**known, policy=Policy(release_no_shows=False)) is None
    came = known | {"checked_in_at": NOW}
    assert next_release(**came, policy=Policy(release_idle=True)) is None
    warned = came | {"idle_warned_at": NOW, "keep_used": True, "now": NOW + 5 * MINUTE}
    assert next_release(**warned, policy=Policy(release_idle=False)) is None
    second = next_release(**warned, policy=Policy(release_idle=True))
    assert second is not None and second.release_at == NOW + 10 * MINUTE
    assert second.text == "Idle for 35 min"
    assert second.unless == "unless work starts", "Keep is used up"


def test_a_kernels_work_counts_for_some_hours_after_the_last_use_of_the_gpus():
    bound = timedelta(seconds=KERNEL_WORK_SECONDS)

    def clock_start(worked, *minutes, begun=NOW):
        return idle_clock_start(
            [MinuteInfo(7, at, 60, 60, 60, pct * 60.0) for at, pct in minutes],
            begun=begun,
            worked_at=worked,
            now=NOW + 48 * HOUR,
            below_pct=3.0,
        )

    assert clock_start(None) == NOW
    assert clock_start(NOW - HOUR) == NOW, "an earlier job's work"
    assert clock_start(NOW + bound) == NOW + bound
    assert clock_start(NOW + bound + HOUR) == NOW + bound, "it only says that it works"
    late = NOW + 20 * HOUR
    assert clock_start(late, (NOW + 9 * HOUR, 2)) == NOW + bound, "that was no use"
    used = NOW + 9 * HOUR
    assert clock_start(late, (used, 3), (NOW, 90)) == used + MINUTE + bound
    kept = NOW + 13 * HOUR
    assert clock_start(late, (used, 3), begun=kept) == late, "Keep was pressed"
    assert clock_start(late + 9 * HOUR, begun=kept) == kept + bound


def test_the_holder_is_told_on_page_and_board_and_checks_in_by_a_click(
    db, alice, bob
) -> None:
    now = timezone.now().replace(microsecond=0)
    row = make_reservation(
        alice, make_gpus(1), now - MINUTE, now + 60 * MINUTE, state="active"
    )

    def board(user):
        viewer = viewer_of(user, names_visible=True)
        (entry,) = holders_for(load_board(timezone.now()), viewer).values()
        return entry["looming"]

    page = Client()
    page.force_login(alice)
    path = f"/reservations/{row.pk}/"
    assert "Not started yet." in page.get(path).content.decode()
    assert board(alice)["kind"] == "no_show"
    assert board(bob) is None, "it is nobody else's news"
    assert Caller(bob)("POST", f"{path}check-in".rstrip("/")).status_code == 403
    assert Caller(alice)("POST", f"/reservations/{row.pk}/check-in").status_code == 200
    assert Caller(alice)("POST", f"/reservations/{row.pk}/check-in").status_code == 200
    assert AuditEntry.objects.get(verb__endswith="checked-in").detail["by"] == "click"
    assert board(alice) is None
    policy = SitePolicy.current()
    policy.release_idle = True
    policy.save()
    Reservation.objects.filter(pk=row.pk).update(idle_warned_at=now)
    html = page.get(path).content.decode()
    assert "Idle for 30 min." in html and "Keep (once)" in html
    assert Caller(alice)("POST", f"/reservations/{row.pk}/keep").status_code == 200
    assert board(alice) is None
    assert "Keep (once)" not in page.get(path).content.decode()
    Caller(alice)("POST", f"/reservations/{row.pk}/release")
    gone = Caller(alice)("POST", f"/reservations/{row.pk}/check-in")
    assert gone.status_code == 409
