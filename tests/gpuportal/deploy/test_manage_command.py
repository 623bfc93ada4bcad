"""What every command prints if the database has no tables or does not answer."""

from pathlib import Path

import pytest

from tests.gpuportal.running import manage

NOBODY_LISTENS = "postgres://portal@127.0.0.1:1/portal"


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ({}, "no such table: reservations_sitepolicy"),
        ({"DATABASE_URL": NOBODY_LISTENS}, "port 1 failed"),
    ],
)
def test_a_database_that_cannot_be_used_is_one_line(
    tmp_path: Path, address: dict[str, str], reason: str
) -> None:
    done = manage(tmp_path, "fairshare", **address)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("CommandError: The database cannot be used: ")
    assert reason in line
    assert line.endswith("run: manage.py migrate")


def test_the_place_is_shown_on_request(tmp_path: Path) -> None:
    done = manage(tmp_path, "fairshare", "--traceback")
    assert done.returncode == 1
    assert "Traceback" in done.stderr
