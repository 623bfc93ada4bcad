"""``manage.py upgrade`` on real databases. tests/faults has its self-test."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection

from gpuportal.doctor.diagnosis import exit_status, problem, well
from gpuportal.upgrade import self_test, upgrade_facts
from gpuportal.upgrade.migration_effects import EffectKind, MigrationEffect
from reservations.models import AuditEntry
from tests.factories import make_gpus, make_node
from tests.gpuportal.running import ROOT, manage
from tests.releases.databases import release_database


def run(*words: str) -> tuple[int, str]:
    """Return exit status and output of the command."""
    out, status = StringIO(), 0
    try:
        call_command("upgrade", *words, stdout=out)
    except SystemExit as ended:
        status = int(ended.code or 0)
    return status, out.getvalue()


def test_a_migrated_database_is_checked(db, monkeypatch):
    monkeypatch.setattr("gpuportal.upgrade.upgrade_report.DISK_BYTES", 0)
    make_gpus(1, make_node("atlas", release="0.0.9"))
    status, text = run("--check", "--installed", str(ROOT), "--json")
    found = {row["check"]: row for row in json.loads(text)}
    assert status == 0, text
    assert found["migrations"]["fact"] == "none waits"
    assert found["release"]["state"] == "ok"
    assert "does not name" in found["node atlas"]["fact"]
    status, text = run("--check", "--installed", str(ROOT), "--lost", "python-ldap")
    assert status == 1
    assert "packages: only the installed release has some" in text


def test_the_first_release_is_told_what_it_loses(db, tmp_path):
    with release_database("0.1.0", tmp_path) as environ:
        words = ("upgrade", "--check", "--installed", str(ROOT))
        found = manage(tmp_path, *words, **environ)
    assert found.returncode == 1, found.stderr
    assert "Traceback" not in found.stderr
    assert " wait, the first is placement.0002_size_text." in found.stdout
    lost = "telemetry.0002_device_gate: adds telemetry_node.gate_digest,"
    assert f"problem  migration {lost}" in found.stdout
    assert "node node-a: release 0.1.0 (it reports none)" in found.stdout
    # What a migration does to tables that it makes itself is no matter.
    assert "placement_textendpoint" not in found.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("--check", "--installed", "/nowhere"),
        ("--back-to", "/nowhere"),
        ("--self-test", "--web", "gpu.lab"),
        (),
        ("--check", "--self-test"),
    ],
)
def test_bad_arguments_end_with_status_2(words, db):
    with pytest.raises(CommandError) as refused:
        call_command("upgrade", *words, stdout=StringIO())
    assert refused.value.returncode in (1, 2)
    assert "\n" not in str(refused.value)


def test_a_database_that_is_away_is_a_problem_and_not_a_traceback(db, monkeypatch):
    def away(*_args: object) -> None:
        raise DatabaseError("no route")

    monkeypatch.setattr(upgrade_facts.migrations_due, "unknown", away)
    status, text = run("--check", "--installed", str(ROOT))
    assert status == 1
    assert "problem  database: it does not answer." in text


def test_an_older_release_may_run_unless_a_contract_step_was_done(
    db, tmp_path: Path, monkeypatch
):
    (tmp_path / "manage.py").touch()
    for app in ("telemetry", "reservations", "placement"):
        folder = tmp_path / app / "migrations"
        folder.mkdir(parents=True)
        for path in (ROOT / app / "migrations").glob("0*.py"):
            (folder / path.name).touch()
    newest = tmp_path / "telemetry" / "migrations" / "0009_node_release.py"
    newest.unlink()
    # It only adds a column with a default of the database.
    status, text = run("--back-to", str(tmp_path))
    assert (status, "the older release can use it" in text) == (0, True)
    drop = MigrationEffect(EffectKind.CONTRACT, "telemetry_node", "drops it")
    monkeypatch.setattr(upgrade_facts, "effects_of", lambda *_, **__: [drop])
    status, text = run("--back-to", str(tmp_path))
    assert status == 1
    assert "telemetry.0009_node_release drops it" in text
    # The next release removed what this one had stopped to use.
    release = "[project]\nname = 'gpuportal'\nversion = '0.1.0'\n"
    (tmp_path / "pyproject.toml").write_text(release)
    monkeypatch.setattr(upgrade_facts, "contract_since", lambda _: "0.1.0")
    assert run("--back-to", str(tmp_path))[0] == 0


@contextmanager
def web_of(answers: dict[str, object], status: int) -> Iterator[str]:
    """Start web processes with this answer of ``/readyz``; yield their address."""

    class Web(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(answers).encode())

        def log_message(self, *_args: object) -> None:
            """Write nothing."""

    with HTTPServer(("127.0.0.1", 0), Web) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,)).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.once
def test_what_was_not_in_order_before_the_upgrade_does_not_end_it(db, monkeypatch):
    monkeypatch.setattr(self_test, "_live_nodes", lambda _: [])

    def tested(*words: str) -> tuple[int, str]:
        found = self_test.self_test(web, before=words, patience_seconds=0.0)
        return exit_status(found), found[0].fact

    bad = {"status": "unavailable", "ticks": False, "disk": True, "migrations": False}
    with web_of(bad, 503) as web:
        assert run("--not-in-order", "--web", web) == (0, "ticks migrations\n")
        # An upgrade migrates, so a migration that waits is always a fault.
        assert tested("ticks", "migrations")[0] == 1
        bad["migrations"] = True
        assert tested("ticks", "disk") == (
            0,
            "it answers, and as before the upgrade not in order: ticks",
        )
        assert tested("disk")[0] == tested()[0] == 1
        assert (
            "problem  web: not in order now: ticks." in run("--check", "--web", web)[1]
        )
    with web_of({"detail": "no such page"}, 404) as web:
        assert tested("ticks", "disk")[0] == 1
    with pytest.raises(CommandError, match="does not answer"):
        run("--not-in-order", "--web", web)


def test_an_upgrade_that_was_tested_is_in_the_audit_log(db, monkeypatch):
    words = ("--self-test", "--note", "0.1.0", "0.2.0")
    for found, status in ((problem("web", "away", "See."), 1), (well("web", "up"), 0)):
        monkeypatch.setattr(
            self_test, "self_test", lambda _, found=found, **__: [found]
        )
        assert run(*words)[0] == status
    (row,) = AuditEntry.objects.filter(verb="portal.upgraded")
    assert (row.actor, row.reason) == (None, "0.1.0 → 0.2.0")


def test_the_rows_of_a_table_are_estimated(db):
    make_gpus(3, make_node("atlas"))
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE telemetry_gpu")
    assert upgrade_facts._rows("telemetry_gpu") == 3
    assert upgrade_facts._rows("no_such_table") is None
