"""The report on an upgrade before it is made. Plain Python: the facts are given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuportal.doctor.diagnosis import Diagnosis, note, problem, well
from telemetry.protocol.units import GIB_BYTES, format_duration

MANY_ROWS = 200_000
"""Rows that take seconds to rewrite or to index."""
DISK_BYTES = 3 * GIB_BYTES
"""Room for packages, a backup and a scratch database."""
MOST_TEXTS = 2
"""A line names so many effects of one migration."""
FIRST_RELEASE = "0.1.0"
"""Nodes of this release do not report one."""
BACKUP_SECONDS = 36 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingEffect:
    """An effect of a migration that waits (`migration_effects.py`)."""

    kind: str
    """`contract`, `lock` or `slow`."""
    text: str
    rows: int | None
    """Rows of its table, about; None: not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingMigration:
    """A migration that waits."""

    name: str
    contract_since: str = ""
    """Release that stopped using what it removes; "": it removes nothing on purpose."""
    effects: tuple[PendingEffect, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRelease:
    """A node in service and its worker's release."""

    name: str
    release: str
    """"": it does not report one."""
    silent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradeFacts:
    """The state of a portal before an upgrade. Ages are seconds; None: never."""

    installed: str
    """Release that runs; "": not known."""
    new: str
    published: tuple[str, ...]
    """Releases of the changelog, the newest first."""
    database: bool
    too_old: bool
    """Whether a version before the first release made the database."""
    unknown: tuple[str, ...]
    """Migrations that the database has and the new release lacks."""
    pending: tuple[PendingMigration, ...]
    backup_failure: str
    backup_age_seconds: float | None
    verified_age_seconds: float | None
    running_jobs: int
    waiting_jobs: int
    running_bookings: int
    nodes: tuple[NodeRelease, ...]
    disk_free_bytes: int
    lost_packages: tuple[str, ...]
    """Python packages that only the installed release has."""
    not_in_order: tuple[str, ...] | None
    """Parts that ``/readyz`` calls not in order; None: the web does not answer."""
    manage_command: str = "gpuportal-manage"
    """The program that runs the management commands of this installation."""


def upgrade_report(facts: UpgradeFacts) -> Iterator[Diagnosis]:
    """Say what will happen. A problem needs a decision of the admin."""
    yield _releases(facts)
    if not facts.database:
        fix = "Check DATABASE_URL, and whether the server runs."
        yield problem("database", "it does not answer", fix)
    elif facts.too_old:
        fix = "Make a new database (docs/operations.md)."
        yield problem("database", "a version before 0.1.0 made it", fix)
    else:
        yield from _migrations(facts)
        yield from _going_on(facts)
    yield _web(facts)
    yield _backup(facts)
    yield from _nodes(facts)
    free = f"{facts.disk_free_bytes / GIB_BYTES:.1f} GiB free"
    if facts.disk_free_bytes < DISK_BYTES:
        wanted = f"Make room: {DISK_BYTES / GIB_BYTES:.0f} GiB are needed."
        yield problem("disk", free, wanted)
    else:
        yield well("disk", free)
    if facts.lost_packages:
        names = " ".join(facts.lost_packages)
        fix = f"Install them in the new release's .venv after --prepare: {names}"
        yield problem("packages", "only the installed release has some", fix)


def releases_behind(release: str, new: str, published: Sequence[str]) -> int | None:
    """Return how many releases a node is behind; negative: it is newer.

    None: one of the two is not in the list. A node that reports no release has the
    first one.

    >>> releases_behind("0.1.0", "0.3.0", ["0.3.0", "0.2.0", "0.1.0"])
    2
    >>> releases_behind("", "0.1.0", ["0.1.0"])
    0
    """
    # What is not published yet comes after everything.
    known = [new, *published] if new not in published else list(published)
    own = release or FIRST_RELEASE
    if own not in known:
        return None
    return known.index(own) - known.index(new)


def _releases(facts: UpgradeFacts) -> Diagnosis:
    check = "release"
    if not facts.installed:
        return note(check, f"{facts.new}. Which one runs is not known")
    behind = releases_behind(facts.installed, facts.new, facts.published)
    if behind is not None and behind < 0:
        fix = "To go back, use deploy/upgrade --back."
        return problem(check, f"{facts.new} is older than {facts.installed}", fix)
    if facts.installed == facts.new:
        return well(check, f"{facts.new}, as now")
    return well(check, f"{facts.installed} now, {facts.new} afterwards")


def _migrations(facts: UpgradeFacts) -> Iterator[Diagnosis]:
    if facts.unknown:
        names = ", ".join(facts.unknown[:3])
        fix = "Use the release that migrated it, or restore a backup from before."
        yield problem("migrations", f"the database is newer: {names}", fix)
    if not facts.pending:
        yield well("migrations", "none waits")
        return
    named = f"{len(facts.pending)} wait, the first is {facts.pending[0].name}"
    yield well("migrations", named)
    for migration in facts.pending:
        check = f"migration {migration.name}"
        taken = [one.text for one in migration.effects if one.kind == "contract"]
        if taken:
            yield _contract(check, migration.contract_since, taken, facts)
        others = [one for one in migration.effects if one.kind != "contract"]
        # One operation on a large table is as bad as several.
        for effect in {one.text: one for one in others}.values():
            yield _wait(check, effect)


def _contract(
    check: str, since: str, taken: Sequence[str], facts: UpgradeFacts
) -> Diagnosis:
    more = len(taken) - MOST_TEXTS
    text = "; ".join(taken[:MOST_TEXTS]) + (f"; and {more} more" if more > 0 else "")
    behind = releases_behind(facts.installed, since, facts.published)
    if since and behind is not None and behind <= 0:
        return well(check, f"{text}. {facts.installed} does not use it")
    fix = (
        f"Upgrade to {since} first."
        if since
        else "Upgrade at a quiet time: until the restart, seconds later, requests of "
        "the installed release that need it fail."
    )
    return problem(check, text, fix)


def _wait(check: str, effect: PendingEffect) -> Diagnosis:
    rows = "" if effect.rows is None else f", about {effect.rows} rows"
    if effect.rows is None or effect.rows < MANY_ROWS:
        return note(check, f"{effect.text}{rows}")
    fix = "Upgrade at a quiet time: writes to the table wait meanwhile."
    return problem(check, f"{effect.text}{rows}", fix)


def _going_on(facts: UpgradeFacts) -> Iterator[Diagnosis]:
    yield well(
        "jobs",
        f"{facts.running_jobs} run and go on, {facts.waiting_jobs} wait",
    )
    yield well("bookings", f"{facts.running_bookings} run and go on")
    yield note(
        "restarts",
        "ingest, worker, refine and beat stop for seconds each. The web processes are "
        "replaced: no request is refused, and open pages connect again. Nodes, jobs, "
        "broker and database are not restarted",
    )


def _web(facts: UpgradeFacts) -> Diagnosis:
    bad = facts.not_in_order
    if bad is None:
        return note("web", "it does not answer, so it may be stopped")
    if not bad:
        return well("web", "it answers, and every part is in order")
    fix = (
        f"See {facts.manage_command} health. If you accept it, the test after the "
        "upgrade accepts it too."
    )
    return problem("web", f"not in order now: {', '.join(bad)}", fix)


def _backup(facts: UpgradeFacts) -> Diagnosis:
    fix = f"{facts.manage_command} backup FOLDER --verify"
    if facts.backup_failure:
        return problem("backup", f"the last one failed: {facts.backup_failure}", fix)
    if facts.backup_age_seconds is None:
        return note("backup", "none was made yet. The upgrade makes and verifies one")
    made = f"made {format_duration(facts.backup_age_seconds)} ago"
    if facts.verified_age_seconds is None:
        return note("backup", f"{made}, never verified. The upgrade makes a new one")
    verified = f"verified {format_duration(facts.verified_age_seconds)} ago"
    recent = facts.backup_age_seconds <= BACKUP_SECONDS
    return (well if recent else note)("backup", f"{made}, {verified}")


def _nodes(facts: UpgradeFacts) -> Iterator[Diagnosis]:
    if not facts.nodes:
        yield note("nodes", "no node is in service")
    for node in facts.nodes:
        check = f"node {node.name}"
        named = node.release or f"{FIRST_RELEASE} (it reports none)"
        behind = releases_behind(node.release, facts.new, facts.published)
        after = "Upgrade it after the portal"
        if behind is None:
            yield note(check, f"release {named}, which the changelog does not name")
        elif behind > 1:
            fix = "Upgrade the portal and its nodes one release at a time."
            yield problem(check, f"release {named}, {behind} releases behind", fix)
        elif node.silent:
            yield note(check, f"release {named}, and silent")
        elif behind == 1:
            yield well(check, f"release {named}, which works. {after}")
        else:
            yield well(check, f"release {named}")
