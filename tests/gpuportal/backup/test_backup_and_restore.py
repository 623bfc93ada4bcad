"""A site is backed up, verified and restored by its commands, on both databases."""

import errno
import os
import shutil
import sqlite3
import subprocess
from contextlib import ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone
from msgspec.structs import replace

from gpuportal.backup import (
    database_copy,
    last_backup,
    manifest,
    media_archive,
    sealed_secrets,
    service,
    verification,
)
from gpuportal.backup.backup_refusals import (
    BackupDamaged,
    BackupKeyWrong,
    BackupNotMade,
    BackupUnusable,
)
from gpuportal.backup.backup_version import portal_version
from tests.factories import make_user
from tests.gpuportal.deploy.test_operations_page import BLOCKS
from tests.gpuportal.running import ROOT, environ_for, manage
from tests.releases.databases import empty_database, upgraded_database

RELEASE = "0.1.0"
GOOD = "no difference in balances, quotas, ranks and rows, and the books add up."
FILES = {"sqlite": "database.sqlite3.gz", "postgresql": "database.dump"}
ORIGINS = ["sqlite"] if connection.vendor == "sqlite" else ["sqlite", "postgresql"]
"""A backup of SQLite can be restored into both."""


def run_block(name, folder, **environ):
    """Run a block of docs/operations.md in a checkout whose ``var`` is ``folder``'s."""
    for link in (".venv", "manage.py"):
        if not (folder / link).is_symlink():
            (folder / link).symlink_to(ROOT / link)
    return subprocess.run(
        ["sh", "-eu"],
        input=BLOCKS[name],
        cwd=folder,
        env=environ_for(folder / "var", **environ),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module", params=ORIGINS)
def site(request, django_db_setup, django_db_blocker, tmp_path_factory, kept_databases):
    """A site with the data of a release, and a verified backup of it.

    The backup of SQLite is verified on SQLite only, where ``--verify`` is the same.
    """
    with django_db_blocker.unblock(), ExitStack() as stack:
        checkout = tmp_path_factory.mktemp("site")
        var, folder, key = checkout / "var", checkout / "backups", checkout / "key"
        var.mkdir()
        environ = stack.enter_context(
            upgraded_database(RELEASE, var, kept_databases, request.param)
        )
        log = var / "media" / "jobs" / "7" / "log"
        log.parent.mkdir(parents=True)
        log.write_text("epoch 1\n")
        (var / "secret").mkdir(exist_ok=True)
        order_key = var / "secret" / "order_key"
        order_key.write_text("signs orders")
        order_key.chmod(0o600)
        if request.param == "sqlite":
            # The last written data is in the -wal file, and not in the database's.
            live = stack.enter_context(closing(sqlite3.connect(var / "db.sqlite3")))
            live.execute("PRAGMA wal_autocheckpoint=0")
            live.execute("INSERT INTO auth_group (name) VALUES ('written last')")
            live.commit()
        if request.param == connection.vendor == "sqlite":
            done = run_block(
                "sqlite-backup", checkout, BACKUPS=str(folder), KEY=str(key), **environ
            )
        else:
            verify = ["--verify"] if request.param == "postgresql" else []
            done = manage(
                var,
                *("backup", str(folder), *verify, "--new-key", str(key)),
                *("--keep", "3"),
                **environ,
            )
        assert (done.returncode, done.stderr) == (0, "")
        (made,) = folder.iterdir()
        yield SimpleNamespace(
            var=var, vendor=request.param, folder=made, key=key, said=done.stdout
        )


@pytest.fixture
def copy(site, tmp_path):
    """A copy of the backup that a test may damage."""
    return Path(shutil.copytree(site.folder, tmp_path / "copy"))


@pytest.mark.django_db
def test_a_backup_is_verified_and_restored_whole(site, tmp_path):
    assert site.said.rstrip().endswith(GOOD) or site.vendor != connection.vendor
    assert site.key.stat().st_mode & 0o777 == 0o600
    assert {path.name for path in site.folder.iterdir()} == {
        *("manifest.json", "media.tar", "secrets.age", FILES[site.vendor])
    }
    assert b"signs orders" not in (site.folder / "secrets.age").read_bytes()
    var = tmp_path / "var"
    with empty_database(var) as environ:
        # On SQLite the documented commands move the site's folder away.
        done = run_block(
            "sqlite-restore",
            tmp_path,
            BACKUP=str(site.folder),
            KEY=str(site.key),
            **environ,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.rstrip().endswith(GOOD)
        assert (var / "media/jobs/7/log").read_text() == "epoch 1\n"
        secret = var / "secret" / "order_key"
        assert secret.read_text() == "signs orders"
        assert secret.stat().st_mode & 0o777 == 0o600
        if connection.vendor == "sqlite":
            with closing(sqlite3.connect(var / "db.sqlite3")) as restored:
                names = restored.execute("SELECT name FROM auth_group").fetchall()
            assert ("written last",) in names


@pytest.mark.django_db
def test_a_database_with_tables_is_not_restored_into(site):
    with pytest.raises(CommandError) as error:
        call_command("restore", str(site.folder), "--without-secrets")
    assert error.value.returncode == 2
    assert "has tables. Restore into an empty one." in str(error.value)
    assert connection.introspection.table_names()


@pytest.mark.parametrize("name", ["database", "media.tar", "secrets.age"])
@pytest.mark.parametrize("fault", ["short", "changed", "gone"])
def test_a_damaged_file_is_named(copy, site, name, fault):
    path = copy / (FILES[site.vendor] if name == "database" else name)
    size = path.stat().st_size
    if fault == "short":
        os.truncate(path, size // 2)
        words = f"has {size // 2} bytes, not {size}"
    elif fault == "changed":
        data = bytearray(path.read_bytes())
        data[size // 2] ^= 1
        path.write_bytes(data)
        words = "was changed"
    else:
        path.unlink()
        words = "is missing"
    with pytest.raises(BackupDamaged) as error:
        verification.verify_backup(copy)
    assert str(path) in str(error.value) and words in str(error.value)


def test_a_backup_that_ended_early_has_no_manifest_and_is_refused(copy):
    (copy / manifest.FILE).unlink()
    with pytest.raises(BackupDamaged, match="not a whole backup"):
        verification.verify_backup(copy)


def test_a_manifest_that_is_cut_short_is_refused(copy):
    os.truncate(copy / manifest.FILE, 1000)
    with pytest.raises(BackupDamaged, match="is damaged"):
        verification.verify_backup(copy)


def test_a_changed_manifest_leads_to_no_file_outside_the_backup(copy):
    made = manifest.read_manifest(copy)
    outside = {"../key": manifest.FileSum(1, "")}
    manifest.write_manifest(copy, replace(made, files=made.files | outside))
    with pytest.raises(BackupDamaged, match="outside the backup"):
        verification.verify_backup(copy)


def test_a_backup_of_a_newer_version_is_refused_with_both_versions(copy):
    made = manifest.read_manifest(copy)
    newer = [*made.migrations, ("reservations", "9999_later")]
    manifest.write_manifest(copy, replace(made, migrations=newer, version="9.9"))
    with pytest.raises(BackupUnusable) as error:
        verification.verify_backup(copy)
    for word in ("version 9.9", portal_version(), "9999_later", "Upgrade"):
        assert word in str(error.value)
    manifest.write_manifest(copy, replace(made, format=manifest.FORMAT + 1))
    with pytest.raises(BackupUnusable, match="Upgrade the portal first"):
        verification.verify_backup(copy)


@pytest.mark.once
def test_figures_that_are_not_those_of_the_copy_are_found(copy, site, monkeypatch):
    """A dump of another moment has valid checksums, but differs from the original."""
    made = manifest.read_manifest(copy)
    # The backup of the fixture was compared with a real restore. Here is what it found.
    counted = (made.facts, [])
    monkeypatch.setattr(database_copy, "facts_of", lambda *_, **__: counted)
    name, total = next(iter(made.facts["balances"].items()))
    facts = made.facts | {"balances": {**made.facts["balances"], name: total + 60}}
    manifest.write_manifest(copy, replace(made, facts=facts))
    assert verification.verify_backup(copy) == [
        f"balances: {name} is {total}, not {total + 60}"
    ]


def test_another_key_does_not_open_the_secrets(site, tmp_path):
    other = tmp_path / "other"
    sealed_secrets.make_key(other)
    source = site.folder / service.SECRETS
    with pytest.raises(BackupKeyWrong, match="Another key was used"):
        sealed_secrets.read_secrets(source, other)
    other.write_text("no key")
    with pytest.raises(BackupKeyWrong, match="is no private key"):
        sealed_secrets.read_secrets(source, other)
    with pytest.raises(BackupKeyWrong, match="No such file"):
        sealed_secrets.read_secrets(source, tmp_path / "missing")
    with pytest.raises(BackupKeyWrong, match="no public key"):
        sealed_secrets.recipient("age1short")
    found = sealed_secrets.read_secrets(source, site.key)
    assert found["order_key"] == "signs orders" and "secret_key" in found


def test_an_existing_key_is_never_written_over(site):
    before = site.key.read_text()
    with pytest.raises(BackupNotMade, match="File exists"):
        sealed_secrets.make_key(site.key)
    assert site.key.read_text() == before


@pytest.mark.django_db(transaction=True)
def test_a_disk_that_fills_up_leaves_nothing(tmp_path, settings, monkeypatch):
    def full(folder, archive):
        archive.write_bytes(b"part")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(media_archive, "write_archive", full)
    with pytest.raises(BackupNotMade, match="the disk is full"):
        service.make_backup(tmp_path / "backups", None, timezone.now())
    assert list((tmp_path / "backups").iterdir()) == []


def test_only_whole_backups_are_counted_when_old_ones_are_deleted(tmp_path):
    for name in ("2026-11-01", "2026-11-02", "2026-11-03", "2026-11-04.partial"):
        (tmp_path / name).mkdir()
        (tmp_path / name / manifest.FILE).touch()
    (tmp_path / "notes").mkdir()
    assert service.remove_old(tmp_path, 2) == [tmp_path / "2026-11-01"]
    assert (tmp_path / "notes").exists()
    assert (tmp_path / "2026-11-04.partial").exists()


def test_the_record_keeps_the_last_verified_time_after_a_failure(tmp_path, settings):
    settings.VAR_DIR = tmp_path
    assert last_backup.read_last() == last_backup.LastBackup()
    last_backup.note_made(verified=True)
    verified = last_backup.read_last()
    assert verified.made_at == verified.verified_at is not None
    last_backup.note_failure("the disk is full")
    assert last_backup.read_last() == replace(verified, failure="the disk is full")
    (tmp_path / "backup.json").write_text("{")
    assert last_backup.read_last() == last_backup.LastBackup()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["backup", "FOLDER", "--keep", "0"], "--keep is 1 or more."),
        (["backup", "FOLDER", "--key", "a", "--new-key", "b"], "Give either"),
        (["backup", "FOLDER", "--key", "a"], "no public key"),
        (["restore", "FOLDER"], "not a whole backup"),
        (["restore", "FOLDER", "--key-file", "a", "--without-secrets"], "Give either"),
    ],
)
@pytest.mark.django_db
def test_wrong_arguments_are_one_line_and_change_nothing(tmp_path, arguments, words):
    arguments = [str(tmp_path) if one == "FOLDER" else one for one in arguments]
    with pytest.raises(CommandError, match=words) as error:
        call_command(*arguments)
    assert error.value.returncode == 2
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.django_db
def test_the_operator_sees_when_the_last_backup_was_and_is_called_for_a_late_one(
    client, tmp_path, settings, monkeypatch
):
    settings.VAR_DIR = tmp_path
    client.force_login(make_user(is_staff=True, is_superuser=True))

    def page():
        return client.get("/manage/").content.decode()

    assert "No backup was made with “manage.py backup” yet." in page()
    settings.MANAGE_COMMAND = "gpuportal-manage"
    assert "“gpuportal-manage backup” yet" in page()
    last_backup.note_made(verified=True)
    assert "One was last verified" in page()
    assert last_backup.trouble() == ""
    monkeypatch.setattr(last_backup, "LATE_SECONDS", -1.0)
    assert "The last backup is too old" in page()
    last_backup.note_failure("media.tar is missing.")
    assert "The last backup failed" in page() and "media.tar is missing." in page()
