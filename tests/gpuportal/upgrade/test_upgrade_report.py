"""What ``--check`` says, and when an admin has to decide."""

from dataclasses import replace

import pytest

from gpuportal.doctor.diagnosis import exit_status, report_lines
from gpuportal.upgrade.upgrade_report import (
    MANY_ROWS,
    NodeRelease,
    PendingEffect,
    PendingMigration,
    UpgradeFacts,
    releases_behind,
    upgrade_report,
)
from telemetry.protocol.units import GIB_BYTES

pytestmark = pytest.mark.pure
DAY = 86400.0
WELL = UpgradeFacts(
    installed="0.2.0",
    new="0.3.0",
    published=("0.3.0", "0.2.0", "0.1.0"),
    database=True,
    too_old=False,
    unknown=(),
    pending=(),
    backup_failure="",
    backup_age_seconds=3600.0,
    verified_age_seconds=3600.0,
    running_jobs=3,
    waiting_jobs=1,
    running_bookings=2,
    nodes=(NodeRelease(name="atlas", release="0.2.0", silent=False),),
    disk_free_bytes=20 * GIB_BYTES,
    lost_packages=(),
    not_in_order=(),
)


def migration(kind: str, rows: int | None = None, since: str = "") -> PendingMigration:
    """Return a migration with one effect."""
    effect = PendingEffect(kind=kind, text=f"does {kind}", rows=rows)
    return PendingMigration(name="lab.0009", contract_since=since, effects=(effect,))


def said(**changes: object) -> tuple[int, str]:
    """Return exit status and report of a portal with some facts changed."""
    found = list(upgrade_report(replace(WELL, **changes)))
    return exit_status(found), "\n".join(report_lines(found))


def test_what_is_not_in_order_before_has_to_be_accepted():
    status, text = said(not_in_order=("ticks", "disk"))
    assert status == 1 and "problem  web: not in order now: ticks, disk." in text
    assert "Fix: See gpuportal-manage health." in text
    _, text = said(not_in_order=("disk",), manage_command="manage.py")
    assert "Fix: See manage.py health." in text
    status, text = said(not_in_order=None)
    assert status == 0 and "web: it does not answer, so it may be stopped." in text


def test_a_portal_in_order_may_be_upgraded():
    status, text = said()
    assert status == 0
    for line in (
        "ok       release: 0.2.0 now, 0.3.0 afterwards.",
        "ok       migrations: none waits.",
        "ok       web: it answers, and every part is in order.",
        "ok       jobs: 3 run and go on, 1 wait.",
        "ok       bookings: 2 run and go on.",
        "ok       backup: made 1 h ago, verified 1 h ago.",
        "ok       node atlas: release 0.2.0, which works. Upgrade it after the portal.",
        "ok       disk: 20.0 GiB free.",
    ):
        assert line in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"database": False}, "database: it does not answer"),
        ({"too_old": True}, "database: a version before 0.1.0 made it"),
        ({"unknown": ("lab.0010",)}, "the database is newer: lab.0010"),
        ({"new": "0.1.0"}, "0.1.0 is older than 0.2.0. Fix: To go back"),
        ({"disk_free_bytes": GIB_BYTES}, "disk: 1.0 GiB free. Fix: Make room: 3 GiB"),
        ({"backup_failure": "no space"}, "backup: the last one failed: no space"),
        ({"lost_packages": ("python-ldap",)}, ".venv after --prepare: python-ldap"),
        ({"pending": (migration("contract"),)}, "does contract. Fix: Upgrade at a"),
        (
            {"pending": (migration("contract", since="0.3.0"),)},
            "does contract. Fix: Upgrade to 0.3.0 first.",
        ),
        ({"pending": (migration("lock", MANY_ROWS),)}, "about 200000 rows. Fix: "),
        (
            {"nodes": (NodeRelease(name="atlas", release="", silent=False),)},
            "node atlas: release 0.1.0 (it reports none), 2 releases behind.",
        ),
    ],
)
def test_what_an_admin_has_to_decide(changes, words):
    status, text = said(**changes)
    assert status == 1
    assert words in text
    assert text.count("problem ") == 1


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"installed": ""}, "note     release: 0.3.0. Which one runs is not known."),
        ({"new": "0.2.0"}, "ok       release: 0.2.0, as now."),
        (
            {"pending": (migration("lock", 9),)},
            "note     migration lab.0009: does lock",
        ),
        ({"pending": (migration("slow"),)}, "note     migration lab.0009: does slow."),
        (
            {"pending": (migration("contract", since="0.2.0"),)},
            "ok       migration lab.0009: does contract. 0.2.0 does not use it.",
        ),
        ({"backup_age_seconds": None}, "none was made yet. The upgrade makes and"),
        ({"verified_age_seconds": None}, "made 1 h ago, never verified. The upgrade"),
        ({"backup_age_seconds": 9 * DAY}, "note     backup: made 9 d ago"),
        ({"nodes": ()}, "note     nodes: no node is in service."),
        (
            {"nodes": (NodeRelease(name="a", release="0.2.0", silent=True),)},
            "note     node a: release 0.2.0, and silent.",
        ),
        (
            {"nodes": (NodeRelease(name="a", release="0.9.9", silent=False),)},
            "note     node a: release 0.9.9, which the changelog does not name.",
        ),
    ],
)
def test_what_needs_no_decision(changes, words):
    status, text = said(**changes)
    assert status == 0
    assert words in text


def test_a_release_that_is_not_published_yet_is_the_newest():
    published = ["0.2.0", "0.1.0"]
    assert releases_behind("0.2.0", "0.3.0", published) == 1
    assert releases_behind("0.3.0", "0.3.0", published) == 0
    assert releases_behind("0.2.0", "0.1.0", published) == -1


def test_many_effects_of_one_migration_are_one_line():
    effects = tuple(
        PendingEffect(kind="contract", text=f"drops c{n}", rows=None) for n in range(5)
    )
    pending = (PendingMigration(name="lab.0009", effects=effects),)
    assert "drops c0; drops c1; and 3 more. Fix" in said(pending=pending)[1]
