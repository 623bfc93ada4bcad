"""A migration that was merged is never edited: databases have already run it."""

import hashlib
from pathlib import Path

import pytest

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
def test_every_migration_is_listed(folder):
    made = {path.name for path in folder.glob("[0-9]*.py")}
    missing = " ".join(sorted(made - listed(folder).keys()))
    assert not missing, (
        f"add the new migration: cd {folder.parent.name}/migrations && "
        f"sha256sum {missing} >>SHA256SUMS"
    )
