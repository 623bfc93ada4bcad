"""Migrations are only appended, and are self-contained.

A migration that was merged is never edited, because databases have already run it. It
imports nothing of the portal, because a later change of the import would change its
meaning.

A migration runs while the release before it still runs, so it takes nothing away from
that release.
"""

import ast
import hashlib
import re
from pathlib import Path

import pytest
from django.db.migrations.loader import MigrationLoader

from gpuportal.upgrade.migration_effects import (
    EffectKind,
    contract_since,
    effects_of,
)
from tests.house.walk import APPS, ROOT

FOLDERS = [folder for app in APPS if (folder := ROOT / app / "migrations").is_dir()]

pytestmark = pytest.mark.pure


def listed(folder: Path) -> dict[str, str]:
    """Names and sums of ``SHA256SUMS``, as ``sha256sum`` writes them."""
    lines = (folder / "SHA256SUMS").read_text().splitlines()
    return {name: total for total, name in (line.split() for line in lines)}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_merged_migrations_are_never_edited(folder):
    for name, total in listed(folder).items():
        found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        assert found == total, (
            f"{name} was edited after it was merged. Databases that ran it will never "
            "see the change: undo the edit and add a new migration"
        )


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_migrations_import_nothing_of_the_portal(folder):
    imports = {
        (path.name, name)
        for path in folder.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in imported(node)
    }
    ours = {*APPS, "tests", ""}
    wrong = sorted((file, name) for file, name in imports if name in ours)
    assert not wrong, (
        f"{wrong}: give the model's default as a literal or a builtin (state.value, "
        "functools.partial), and make the migration again"
    )


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Top packages of an import; "" for a relative one."""
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return ["" if node.level else (node.module or "").partition(".")[0]]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_every_migration_is_listed(folder):
    made = {path.name for path in folder.glob("[0-9]*.py")}
    missing = " ".join(sorted(made - listed(folder).keys()))
    assert not missing, (
        f"add the new migration: cd {folder.parent.name}/migrations && "
        f"sha256sum {missing} >>SHA256SUMS"
    )


GRANDFATHERED = frozenset(
    {
        *("placement.0003_job_after", "placement.0004_job_retry_failed"),
        *("placement.0008_rename_text_endpoint", "telemetry.0002_device_gate"),
        *("telemetry.0004_not_isolated", "telemetry.0005_slurm"),
        "telemetry.0006_pool_may_adopt",
    }
)
"""Written before this rule. No other one is ever added."""


def test_a_migration_takes_nothing_away_from_the_release_that_runs():
    """``gpuportal/upgrade/migration_effects.py`` says what that means."""
    loader = MigrationLoader(None)
    changelog = (ROOT / "CHANGELOG.md").read_text()
    released = set(re.findall(r"^## (\d+\.\d+\.\d+) \(", changelog, re.MULTILINE))
    wrong, contracts = [], set()
    for key, migration in sorted(loader.disk_migrations.items()):
        if key[0] not in APPS:
            continue
        name = ".".join(key)
        before = loader.project_state(key, at_end=False)
        taken = [
            effect.text
            for effect in effects_of(migration, before, remakes_tables=False)
            if effect.kind is EffectKind.CONTRACT
        ]
        since = contract_since(migration)
        if since and not taken:
            wrong.append(f"{name} has contract_since, but takes nothing away")
        if since and since not in released:
            wrong.append(f"{name}: contract_since {since} is not a published release")
        if taken and not since:
            contracts.add(name)
            if name not in GRANDFATHERED:
                wrong += [f"{name} {text}" for text in taken]
    assert not wrong, (
        f"{wrong}: give a new column null=True or a db_default. To drop or rename "
        "something, first publish a release that does not use it, and name that "
        "release in contract_since of the migration"
    )
    assert contracts == GRANDFATHERED
