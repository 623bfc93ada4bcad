"""A database of each release is upgraded, and nothing of it is lost.

``record.py`` made the dumps and the figures beside them, and says how. They are never
made again: what a release wrote stays as it was.
"""

import gzip
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.conf import settings
from django.db import connection
from psycopg import sql

from tests.gpuportal.running import ROOT, environ_for, manage
from tests.releases.figures import PEOPLE

FOLDER = Path(__file__).resolve().parent
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
def restored(release: str, db, tmp_path: Path) -> Iterator[dict[str, str]]:
    """A database as the release left it; yields the environment that names it."""
    packed = FOLDER / release / f"{connection.vendor}.sql.gz"
    text = gzip.decompress(packed.read_bytes()).decode()
    # A database of its own in the broker: what other tests counted is in the first.
    broker = {"REDIS_URL": settings.REDIS_URL.replace("db=0", "db=9")}
    (tmp_path / "static").mkdir()
    if connection.vendor == "sqlite":
        with closing(sqlite3.connect(tmp_path / "db.sqlite3")) as database:
            database.executescript(text)
        yield broker
        return
    given = connection.settings_dict
    name = sql.Identifier(made := f"upgrade_{os.getpid()}")
    server: dict[str, Any] = {
        "host": given["HOST"],
        "port": given["PORT"] or 5432,
        "user": given["USER"],
        "password": given["PASSWORD"],
    }
    with psycopg.connect(**server, dbname="postgres", autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(name))
        try:
            with psycopg.connect(**server, dbname=made, autocommit=True) as database:
                database.execute(text.encode())
            password = f":{given['PASSWORD']}" if given["PASSWORD"] else ""
            yield broker | {
                "DATABASE_URL": f"postgres://{given['USER']}{password}@"
                f"{given['HOST']}:{server['port']}/{made}"
            }
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


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
def test_books_ranks_rows_and_pages_survive_the_upgrade(recorded, restored, tmp_path):
    for command in (["migrate", "-v0"], ["check_books"]):
        done = manage(tmp_path, *command, **restored)
        assert done.returncode == 0, done.stderr
    found = measured(tmp_path, recorded["at"], **restored)
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
