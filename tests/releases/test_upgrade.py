"""A database of each release is upgraded, and nothing of it is lost.

``record.py`` made the dumps and the figures beside them, and explains how. They are
never made again, because a release's data must stay unchanged.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from tests.gpuportal.running import ROOT, environ_for
from tests.releases.databases import FOLDER, upgraded_database
from tests.releases.figures import PEOPLE

RELEASES = sorted(path.parent.name for path in FOLDER.glob("*/sqlite.sql.gz"))


def test_there_is_a_release():
    assert "0.1.0" in RELEASES


@pytest.fixture(params=RELEASES)
def release(request) -> str:
    return request.param


@pytest.fixture
def recorded(release: str, db) -> dict[str, Any]:
    """What the release found in the database of this kind."""
    return json.loads((FOLDER / release / f"{connection.vendor}.json").read_text())


@pytest.fixture
def upgraded(
    release: str, db, tmp_path: Path, kept_databases: Path
) -> Iterator[dict[str, str]]:
    """A database of the release after the upgrade; yields the environment naming it."""
    with upgraded_database(release, tmp_path, kept_databases) as environ:
        yield environ


def measured(var: Path, at: str, **more: str) -> dict[str, Any]:
    """Return the figures of a database, found by a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.releases.figures", at],
        cwd=ROOT,
        env=environ_for(var, DJANGO_SETTINGS_MODULE="gpuportal.settings", **more),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.timeout(480)
def test_books_ranks_rows_and_pages_survive_the_upgrade(recorded, upgraded, tmp_path):
    found = measured(tmp_path, recorded["at"], **upgraded)
    assert found["books"] == []
    assert found["ledger"] == recorded["ledger"]
    assert found["ranks"] == recorded["ranks"]
    lost = {
        label: (number, found["rows"].get(label, 0))
        for label, number in recorded["rows"].items()
        if found["rows"].get(label, 0) < number
    }
    assert not lost, "rows that the release had, and those of them that are left"
    assert found["pages"] == recorded["pages"]
    operator = PEOPLE[1]
    assert set(found["pages"][operator].values()) == {200}
