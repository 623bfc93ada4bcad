"""The archive of uploads, results and logs."""

import os
import tarfile

import pytest

from gpuportal.backup.backup_refusals import BackupDamaged
from gpuportal.backup.media_archive import read_archive, write_archive


def test_files_come_back_with_contents_mode_and_time(tmp_path):
    log = tmp_path / "media" / "jobs" / "7" / "log"
    log.parent.mkdir(parents=True)
    log.write_bytes(b"epoch 1\n")
    log.chmod(0o640)
    os.utime(log, (1_700_000_000, 1_700_000_000))
    assert write_archive(tmp_path / "media", tmp_path / "media.tar") == 1
    assert read_archive(tmp_path / "media.tar", tmp_path / "again") == 1
    back = tmp_path / "again" / "jobs" / "7" / "log"
    about = back.stat()
    assert (back.read_bytes(), about.st_mode & 0o777) == (b"epoch 1\n", 0o640)
    assert about.st_mtime == 1_700_000_000


def test_no_link_is_followed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("key")
    media = tmp_path / "media"
    media.mkdir()
    (media / "file").symlink_to(secret)
    (media / "folder").symlink_to(tmp_path)
    assert write_archive(media, tmp_path / "media.tar") == 0
    with tarfile.open(tmp_path / "media.tar") as tar:
        assert tar.getnames() == []


def test_a_folder_that_was_never_made_is_an_empty_archive(tmp_path):
    assert write_archive(tmp_path / "none", tmp_path / "media.tar") == 0
    assert read_archive(tmp_path / "media.tar", tmp_path / "again") == 0


def test_a_log_that_is_trimmed_while_it_is_read_spoils_nothing(tmp_path, monkeypatch):
    media = tmp_path / "media"
    media.mkdir()
    (media / "a-log").write_bytes(b"x" * 5000)
    (media / "b-result").write_bytes(b"kept")
    fstat = os.fstat

    def trimmed(handle):
        about = fstat(handle)
        if about.st_size == 5000:
            os.truncate(media / "a-log", 10)
        return about

    monkeypatch.setattr("gpuportal.backup.media_archive.os.fstat", trimmed)
    assert write_archive(media, tmp_path / "media.tar") == 2
    assert read_archive(tmp_path / "media.tar", tmp_path / "again") == 2
    assert (tmp_path / "again" / "a-log").read_bytes() == b"x" * 10 + b"\0" * 4990
    assert (tmp_path / "again" / "b-result").read_bytes() == b"kept"


@pytest.mark.parametrize("name", ["../outside", "/outside", "link"])
def test_an_archive_that_leads_outside_is_refused(tmp_path, name):
    with tarfile.open(tmp_path / "media.tar", "w") as tar:
        info = tarfile.TarInfo(name)
        if name == "link":
            info.type, info.linkname = tarfile.SYMTYPE, "/etc"
        tar.addfile(info)
    with pytest.raises(BackupDamaged):
        read_archive(tmp_path / "media.tar", tmp_path / "again")
    assert not (tmp_path / "outside").exists()


def test_an_archive_that_is_cut_short_is_refused(tmp_path):
    media = tmp_path / "media"
    media.mkdir()
    (media / "result").write_bytes(b"x" * 50_000)
    archive = tmp_path / "media.tar"
    write_archive(media, archive)
    os.truncate(archive, 20_000)
    with pytest.raises(BackupDamaged):
        read_archive(archive, tmp_path / "again")
