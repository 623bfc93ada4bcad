"""Record a release: dump a database of the demo lab, and its figures.

    python -m tests.releases.record VERSION

Run it in a checkout of the release, once for each database. The settings choose the
database, which must be empty. The pages need a broker::

    redis-server --port 6399 --save '' &
    export REDIS_URL=redis://127.0.0.1:6399/0
    export GPUPORTAL_VAR=$(mktemp -d) DJANGO_SETTINGS_MODULE=gpuportal.settings
    .venv/bin/python -m tests.releases.record 0.1.0
    export DATABASE_URL=postgres://postgres@127.0.0.1:5432/empty
    .venv/bin/python -m tests.releases.record 0.1.0

It writes ``VERSION/sqlite.sql.gz`` or ``VERSION/postgresql.sql.gz`` beside this file,
and the figures as JSON. Minutes and hours of telemetry are cut, to keep it small.
"""

import gzip
import json
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import django

FOLDER = Path(__file__).resolve().parent
KEPT_MINUTES = timedelta(hours=1)
KEPT_HOURS = timedelta(days=2)
MOST_BYTES = 500_000


def dump_sqlite(database: dict[str, Any]) -> str:
    """Return the database as SQL."""
    with closing(sqlite3.connect(database["NAME"])) as connection:
        return "\n".join(connection.iterdump()) + "\n"


def dump_postgresql(database: dict[str, Any]) -> str:
    """Return the database as SQL that any client can run: no commands of psql."""
    done = subprocess.run(
        [
            *("pg_dump", "--no-owner", "--no-privileges", "--inserts"),
            *("--rows-per-insert", "200", "--host", database["HOST"]),
            *("--port", str(database["PORT"] or 5432), "--username", database["USER"]),
            database["NAME"],
        ],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return re.sub(r"^\\.*\n", "", done.stdout, flags=re.MULTILINE)


def fill(now: datetime) -> None:
    """Make the demo lab, and cut its history."""
    from django.core.management import call_command

    from telemetry.models import AccountHour, SampleHour, SampleMinute

    call_command("migrate", verbosity=0)
    call_command("demo_lab")
    SampleMinute.objects.filter(minute_at__lt=now - KEPT_MINUTES).delete()
    for model in (SampleHour, AccountHour):
        model._default_manager.filter(hour_at__lt=now - KEPT_HOURS).delete()


def main(version: str) -> None:
    """Fill, dump, measure."""
    django.setup()
    from django.db import connection
    from django.test.utils import setup_test_environment
    from django.utils import timezone

    from tests.releases.figures import figures

    setup_test_environment()
    now = timezone.now().replace(microsecond=0)
    fill(now)
    database = connection.settings_dict
    dump = {"sqlite": dump_sqlite, "postgresql": dump_postgresql}[connection.vendor]
    text = gzip.compress(dump(database).encode(), mtime=0)
    if len(text) > MOST_BYTES:
        raise SystemExit(f"record: {len(text)} bytes are more than {MOST_BYTES}")
    place = FOLDER / version
    place.mkdir(exist_ok=True)
    (place / f"{connection.vendor}.sql.gz").write_bytes(text)
    found = json.dumps(figures(now), indent=1, sort_keys=True)
    (place / f"{connection.vendor}.json").write_text(found + "\n")
    print(f"{place}: {connection.vendor}, {len(text)} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python -m tests.releases.record VERSION")
    main(sys.argv[1])
