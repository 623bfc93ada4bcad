"""``manage.py portal`` as a real process: start, second start, every way to end.

No database fixture: these portals have folders and SQLite files of their own,
so the module runs once and not once per database.
"""

import contextlib
import os
import re
import signal
import socket
import sqlite3
import time
from pathlib import Path

import pytest

from tests.gpuportal.running import Portal, environ_for, manage, simulate, status_of

pytestmark = pytest.mark.timeout(400)
"""Portals start here, and a database is migrated, beside the rest of the suite."""
SECRETS = {"SECRET_KEY": "x" * 50, "EMAIL_HOST_PASSWORD": "hush"}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory, make_database) -> Path:
    """A folder with a simulated node, whose path is too long for a Unix socket."""
    var = tmp_path_factory.mktemp("long") / ("v" * 110)
    make_database(var / "db.sqlite3")
    simulate(var, "sim-a")
    return var


@pytest.fixture(scope="module")
def portal(prepared: Path):
    """One portal for the tests that do not end it."""
    with Portal(prepared, "--no-demo", **SECRETS) as running:
        running.address = running.ready()
        yield running


def test_the_address_is_printed_when_the_pages_answer(portal):
    assert status_of(f"{portal.address}/healthz") == 200
    assert status_of(f"{portal.address}/login/") == 200


def mains(portal: Portal) -> dict[str, int]:
    """Return the process ids of the site's lasting processes.

    They are the supervisor's own children. A pool's child has its parent's command
    line until it names itself.
    """
    parts = ("valkey-server", "uvicorn", "manage.py ingest", "--pidfile=")
    celery = ("-Q control", "-Q node.sim-a")
    return {
        part: pid
        for pid, words in portal.left().items()
        for part in (*parts, *celery)
        if part in words and portal.parent_of(pid) == portal.process.pid
    }


def test_every_process_of_the_site_runs(portal):
    deadline = time.monotonic() + 90
    while len(mains(portal)) < 6 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert len(mains(portal)) == 6, portal.left()


def test_a_second_start_is_refused_in_one_line_and_disturbs_nothing(portal):
    before = mains(portal)
    second = manage(portal.var, "portal", "--port", "0")
    assert second.returncode == 1
    assert second.stdout == ""
    assert len(second.stderr.strip().splitlines()) == 1
    assert f"already runs in this checkout (process {portal.process.pid}" in (
        second.stderr
    )
    assert status_of(f"{portal.address}/healthz") == 200
    assert mains(portal) == before


def test_a_node_worker_knows_no_secret_of_the_control_side(portal):
    pids = [pid for pid, words in portal.left().items() if "-Q node.sim-a" in words]
    assert pids
    for pid in pids:
        known = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"GPUPORTAL_NODE=sim-a" in known
        for name in (
            "SECRET_KEY",
            "DATABASE_URL",
            "EMAIL_",
            "DJANGO_",
            "GPUPORTAL_VAR",
        ):
            assert name.encode() not in known


def test_a_killed_web_process_is_started_again_on_the_same_port(portal):
    old = mains(portal)["uvicorn"]
    os.kill(old, signal.SIGKILL)
    assert "starting it again in 0.5 s" in portal.until("web was ended by SIGKILL")
    # The supervisor holds the port: the visitor waits and is not turned away.
    assert status_of(f"{portal.address}/healthz") == 200
    assert mains(portal)["uvicorn"] != old


def test_secrets_are_for_the_owner_only(portal):
    private = [portal.var / name for name in ("secret", "media", "log")]
    private += [*(portal.var / "secret").iterdir(), *portal.var.glob("db.sqlite3*")]
    assert len(private) > 6
    for path in private:
        assert path.stat().st_mode & 0o077 == 0, path


def test_sigterm_stops_all_in_good_time(portal):
    began = time.monotonic()
    portal.process.send_signal(signal.SIGTERM)
    assert portal.process.wait(60) == 0
    assert time.monotonic() - began < 10
    assert portal.left() == {}
    portal.until("stopped; nothing is left running.", 2)


def test_a_killed_supervisor_takes_everything_with_it(prepared):
    with Portal(prepared, "--no-demo") as portal:
        portal.ready()
        deadline = time.monotonic() + 90
        while "telemetry.agent.sampler" not in str(portal.left()):
            assert time.monotonic() < deadline, portal.left()
            time.sleep(0.1)
        # Long enough for every timer of the workers to have gone round once.
        time.sleep(4)
        portal.process.kill()
        portal.process.wait(60)
        assert portal.gone(60) == {}


def test_a_taken_port_is_one_line_and_status_two(tmp_path):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        done = manage(tmp_path, "portal", "--port", port)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert f"port {port}: Address already in use" in done.stderr
    assert not (tmp_path / "db.sqlite3").exists()


def test_a_taken_port_names_one_that_is_free(tmp_path):
    """The next one may be taken as well."""
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            one, other = (stack.enter_context(socket.socket()) for _ in range(2))
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                other.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            break
        one.listen()
        other.listen()
        done = manage(tmp_path, "portal", "--port", str(port))
        advice = re.search(r"port (\d+) is free: make run PORT=(\d+)", done.stderr)
        assert advice is not None, done.stderr
        assert advice[1] == advice[2]
        assert int(advice[1]) > port + 1
        with socket.socket() as free:
            free.bind(("127.0.0.1", int(advice[1])))
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_broker_that_does_not_answer_is_one_line(tmp_path):
    done = manage(tmp_path, "portal", "--port", "0", REDIS_URL="redis://127.0.0.1:1/0")
    assert done.returncode == 1
    assert "REDIS_URL does not answer" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_database_from_before_the_first_release_is_one_line(tmp_path, make_database):
    make_database(tmp_path / "db.sqlite3")
    with contextlib.closing(sqlite3.connect(tmp_path / "db.sqlite3")) as database:
        database.execute(
            "INSERT INTO django_migrations (app, name, applied) "
            "VALUES ('reservations', '0002_token', '2026-11-20')"
        )
        database.commit()
    done = manage(tmp_path, "portal", "--port", "0")
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert "made by a version before 0.1.0" in done.stderr
    assert f"Move {tmp_path.resolve()} to another place" in done.stderr
    done = manage(tmp_path, "migrate")
    assert done.returncode == 1
    assert "gpuportal.E007" in done.stderr
    assert "Traceback" not in done.stderr
    # As advised: the folder moves away, and a new database is made. make_database did
    # that with the same command, in an empty folder.
    tmp_path.rename(tmp_path.with_name("before"))
    make_database(tmp_path / "db.sqlite3")
    assert manage(tmp_path, "migrate", "-v0").returncode == 0


def test_production_without_a_secret_key_does_not_start(tmp_path):
    done = manage(tmp_path, "check", GPUPORTAL_PRODUCTION="1")
    assert done.returncode != 0
    assert "SECRET_KEY is not set" in done.stderr
    assert "SECRET_KEY" not in environ_for(tmp_path)
    assert not (tmp_path / "secret").exists()
