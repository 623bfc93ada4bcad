"""Environments that are built once: their key, their cache, and builds that fail."""

import fcntl
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from placement.agent.process import environment_cache
from placement.agent.process.environment_cache import (
    MOST_REQUIREMENTS_BYTES,
    EnvironmentBuild,
    built_programs,
    environment_key,
    project_contents,
    remove_oldest,
    requirement_contents,
)
from placement.agent.storage import folder_size
from telemetry.proc_stat import read_stat
from tests.placement.nodes import until

KEY = environment_key(b"key")
LEFT = f"{KEY}-leftleft"
MAKES = 'mkdir -p "$0/bin" && echo made $USER'


class Builder:
    """Builds by a command of the shell, whose $0 is the environment."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch
        self.source = folder / "needs.txt"
        self.source.write_text("torch\n")
        self.cache, self.log = folder / "a b/cache", folder / "log"
        self.held: list[int] = []

    def __call__(self, script, key=KEY, most_bytes=0):
        step = ("/bin/sh", "-c", script, "{venv}")
        contents = requirement_contents(self.source, {})
        made = EnvironmentBuild(key, self.source, (step,), contents)
        self.monkeypatch.setattr(environment_cache, "_build_of", lambda *_: made)
        before = open_files()
        with self.log.open("ab") as file:
            try:
                return built_programs(
                    self.source,
                    self.cache,
                    env={"USER": "ada", "HOME": str(self.folder)},
                    most_bytes=most_bytes,
                    log=file.fileno(),
                )
            finally:
                self.held += sorted(open_files() - before - {file.fileno()})

    def leave(self):
        while self.held:
            os.close(self.held.pop())


@pytest.fixture
def build(tmp_path, monkeypatch):
    builder = Builder(tmp_path, monkeypatch)
    yield builder
    builder.leave()


def open_files():
    """Return the descriptors of this process that exec keeps."""
    return {
        int(path.name)
        for path in Path("/proc/self/fd").iterdir()
        if int(path.name) >= environment_cache.FIRST_HELD and path.exists()
    }


def entries(cache):
    return sorted(path.name for path in cache.iterdir() if path.name != "lock")


def test_the_key_follows_the_content_and_what_it_includes(tmp_path):
    base, needs = tmp_path / "base.txt", tmp_path / "needs.txt"
    base.write_text("torch==2.0\n")
    needs.write_text("-r base.txt\n--requirement=needs.txt\n-c none.txt\nnumpy\n")
    first = requirement_contents(needs, {})
    base.write_text("torch==2.1\n")
    assert requirement_contents(needs, {}) != first
    twin = tmp_path / "other" / "needs.txt"
    twin.parent.mkdir()
    shutil.copy(base, twin.parent)
    address = "https://packages.example.org/simple"
    index = f"--extra-index-url {address}"
    for text, same in (
        ("numpy\n# ./a\n", True),
        (f"{index}\n--pre\n--only-binary=:all:\n-r base.txt\nnumpy\n", True),
        ("./wheels/a.whl\n", False),
        ("--find-links .\nnumpy\n", False),
        (f"{index} --find-links .\nnumpy\n", False),
        ("-e .\n", False),
    ):
        needs.write_text(text)
        twin.write_text(text)
        assert (
            requirement_contents(needs, {}) == requirement_contents(twin, {})
        ) is same
    link = tmp_path / "link.txt"
    link.symlink_to(needs)
    assert requirement_contents(link, {}) == requirement_contents(needs, {})
    assert environment_key(b"ab", b"c") != environment_key(b"a", b"bc")


def test_a_file_from_windows_is_read_as_pip_reads_it(tmp_path):
    needs, base = tmp_path / "needs.txt", tmp_path / "my base.txt"
    base.write_text("torch==2.0\n")
    needs.write_text('numpy\r\n-r \\\n"my base.txt"\r\n', encoding="utf-16", newline="")
    assert needs.read_bytes()[:2] == b"\xff\xfe"
    first = requirement_contents(needs, {})
    base.write_text("torch==2.1\n")
    assert requirement_contents(needs, {}) != first
    needs.write_bytes("numpy\n# für\n".encode("cp1252"))
    with pytest.raises(OSError, match=r"line 2 of .* not in utf-8\. Save the file as"):
        requirement_contents(needs, {})
    needs.write_bytes("# coding: cp1252\nnumpy # für\n".encode("cp1252"))
    assert len(requirement_contents(needs, {})) == 1
    needs.write_text("# coding: none-such\n")
    with pytest.raises(OSError, match="unknown encoding, none-such"):
        requirement_contents(needs, {})


def test_the_variables_of_a_file_count(tmp_path):
    needs, base = tmp_path / "needs.txt", tmp_path / "base.txt"
    base.write_text("torch\n")
    needs.write_text("-r ${WHERE}/base.txt\nnumpy==${NUMPY}\n")
    env = {"WHERE": str(tmp_path), "NUMPY": "2.0", "OTHER": "1"}
    first = requirement_contents(needs, env)
    assert b"torch\n" in first
    assert requirement_contents(needs, env | {"OTHER": "2"}) == first
    assert requirement_contents(needs, env | {"NUMPY": "2.1"}) != first


def test_what_everybody_may_write_is_not_installed(build, tmp_path):
    base = tmp_path / "base.txt"
    base.touch()
    base.chmod(0o666)
    build.source.write_text("-r base.txt\n")
    with pytest.raises(OSError, match=f"everybody may write {base}"):
        requirement_contents(build.source, {})
    build.source.write_text("")
    build.cache.mkdir(parents=True)
    build.cache.parent.chmod(0o777)
    with pytest.raises(OSError, match=r"everybody may write .*a b: it is not used"):
        build("exit 9")


def test_a_project_is_its_lock_its_python_and_its_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"uv\.lock"):
        project_contents(tmp_path)
    (tmp_path / "uv.lock").write_text("version = 1\n")
    plain = project_contents(tmp_path)
    (tmp_path / ".python-version").write_text("3.12\n")
    assert project_contents(tmp_path) != plain


def test_what_is_no_requirements_file_is_refused_at_once(tmp_path):
    needs = tmp_path / "needs.txt"
    os.mkfifo(needs)
    with pytest.raises(OSError, match="is not a regular file"):
        requirement_contents(needs, {})
    needs.unlink()
    needs.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="is not a regular file"):
        requirement_contents(needs, {})
    needs.unlink()
    with needs.open("wb") as file:
        file.truncate(MOST_REQUIREMENTS_BYTES + 1)
    with pytest.raises(OSError, match="has more than 1 MiB"):
        requirement_contents(needs, {})
    needs.write_text("".join(f"-r {number}.txt\n" for number in range(30)))
    for number in range(30):
        (tmp_path / f"{number}.txt").touch()
    with pytest.raises(OSError, match="includes more than 20 files"):
        requirement_contents(needs, {})


@pytest.mark.parametrize("text", [b"\n", b" ", b"\n  "])
def test_a_hostile_requirements_file_takes_no_time(tmp_path, text):
    needs = tmp_path / "needs.txt"
    needs.write_bytes(text * (MOST_REQUIREMENTS_BYTES // len(text)))
    began = time.process_time()
    assert len(requirement_contents(needs, {})) == 1
    assert time.process_time() - began < 1.0


def test_it_is_built_once_with_the_jobs_own_variables(build):
    inner = build(MAKES + '; env | grep -c "^HOME=\\|^PATH=/usr"; env')
    assert Path(inner).is_dir() and build("exit 9") == inner
    assert os.get_inheritable(build.held[0])
    log = build.log.read_text()
    assert "made ada\n2\n" in log and "exit 9" not in log
    assert "PYTEST_CURRENT_TEST" not in log
    assert log.count("gpuportal: builds the environment of") == 1


def test_a_failed_build_says_why_and_leaves_nothing(build, tmp_path, monkeypatch):
    monkeypatch.setattr(folder_size, "LOOK_SECONDS", 0.05)
    broken = f"{MAKES}; printf 'ERROR: no torch\\nhint'; exit 3"
    words = "uv ended with exit code 3: ERROR: no torch$"
    with pytest.raises(OSError, match=words):
        build(broken)
    with pytest.raises(OSError, match="ended with signal 9: made ada"):
        build(f"{MAKES}; kill -9 $$")
    with pytest.raises(OSError, match="may hold 1 MiB"):
        build(
            f'{MAKES}; head -c 3000000 /dev/zero > "$0/big"; exec sleep 60',
            most_bytes=2**20,
        )
    with pytest.raises(OSError, match="it was changed during the build"):
        build(f"{MAKES}; echo more >> {build.source}")
    assert entries(build.cache) == [] and not build.held
    # A program that it leaves in the background does not hold it up.
    assert build(f"{MAKES}; sleep 60 & echo $! > '{tmp_path}/stray'")
    os.kill(int((tmp_path / "stray").read_text()), signal.SIGKILL)


def test_passwords_are_neither_in_the_log_nor_in_the_reason(build):
    script = (
        "echo Looking in https://ada:s3cret@a.example/simple; "
        "printf 'git+ssh://git@b.example/x '; sleep 0.1; "
        "printf 'https://ada:s3'; sleep 0.1; echo cret@a.example/; "
        "echo 'ERROR: 401 for https://s3cret@a.example/'; exit 1"
    )
    with pytest.raises(OSError, match=r"401 for https://\*\*\*\*@a\.example/") as why:
        build(script)
    log = build.log.read_text()
    assert "s3cret" not in log + str(why.value)
    assert "Looking in https://****@a.example/simple\n" in log
    assert "git+ssh://git@b.example/x https://****@a.example/\n" in log


def test_the_reason_has_the_error_of_the_packages_own_setup(build):
    with pytest.raises(OSError, match=r"generation-failed: RuntimeError: no CUDA$"):
        build(
            "echo '  error: subprocess-exited-with-error'; "
            "echo '      RuntimeError: no CUDA'; echo '      [end of output]'; "
            "echo 'error: metadata-generation-failed'; echo hint; exit 1"
        )
    with pytest.raises(OSError, match=r"ERROR: Exception: KeyError: 3$"):
        build("echo ERROR: Exception:; echo Traceback; echo KeyError: 3; exit 2")
    # Of pip's sentence of 300 characters about hashes the page would show no package.
    with pytest.raises(OSError, match=r"not that of the package: six==1\.17\.0$"):
        build(
            "echo 'ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE FILE. If';"
            "echo '    six==1.17.0 from https://x/six.whl (from -r a.txt (line 1)):';"
            "echo '        Expected sha256 5'; echo '             Got        4'; exit 1"
        )
    with pytest.raises(OSError, match=r"Failed to parse `uv.lock`: unclosed table$"):
        build(
            "echo 'error: Failed to parse `uv.lock`'; echo '  Caused by: TOML error';"
            "echo '  Caused by: unclosed table'; echo '   |'; echo hint: x; exit 2"
        )


def test_other_folders_in_the_cache_stay(build):
    """It may be a link to a large disk, where its owner keeps more."""
    other = build.folder / "scratch"
    for name in ("data", f"{KEY}-mine-too", "runs"):
        (other / name).mkdir(parents=True)
    (other / "runs/whole").touch()
    build.cache.parent.mkdir(parents=True)
    build.cache.symlink_to(other)
    folder = Path(build(MAKES)).parents[1]
    remove_oldest(build.cache, kept=folder, most=0)
    assert len(entries(other)) == 4


def test_a_cache_that_cannot_be_written_says_so(build):
    build.cache.parent.touch()
    with pytest.raises(OSError, match=r"kept in .*cannot be written: Not a directory"):
        build(MAKES)
    build.cache.parent.unlink()
    (build.cache / "lock").mkdir(parents=True)
    with pytest.raises(OSError, match="lock cannot be used: Is a directory"):
        build(MAKES)


def test_a_mark_that_is_no_file_is_not_used(build):
    (build.cache / LEFT / "whole").mkdir(parents=True)
    folder = Path(build(MAKES)).parents[1]
    assert folder.name != LEFT
    remove_oldest(build.cache, kept=folder, most=0)
    assert len(entries(build.cache)) == 2


def test_a_full_disk_says_so(build):
    with pytest.raises(OSError, match="No space left on device"):
        build("cp /etc/passwd /dev/full")
    assert entries(build.cache) == []


def test_what_a_killed_build_left_is_not_used_and_goes(build):
    (build.cache / LEFT / "venv/bin").mkdir(parents=True)
    inner = build(MAKES)
    assert entries(build.cache) == [Path(inner).parents[1].name] != [LEFT]


def test_a_stop_ends_the_build_and_removes_it(build):
    script = (
        f"{MAKES}; trap '' TERM; sleep 60 & echo $! > '{build.folder}/stray'; "
        f"kill -TERM {os.getpid()}; wait"
    )
    with pytest.raises(OSError, match="the job was stopped while its environment"):
        build(script)
    assert entries(build.cache) == []
    stray = int((build.folder / "stray").read_text())
    until(lambda: (found := read_stat(stray)) is None or found.dead)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_second_job_waits_and_builds_nothing(build):
    build.cache.mkdir(parents=True)
    lock = os.open(build.cache / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)

    def first_job():
        while "waits for another job" not in build.log.read_text():
            threading.Event().wait(0.02)
        (build.cache / LEFT / "venv/bin").mkdir(parents=True)
        (build.cache / LEFT / "whole").touch()
        os.close(lock)

    build.log.touch()
    thread = threading.Thread(target=first_job)
    thread.start()
    assert build("exit 9") == str(build.cache / LEFT / "venv/bin")
    thread.join()


def test_the_oldest_unused_environments_go(build):
    folders = []
    for number in range(4):
        folders.append(
            Path(build(MAKES, key=environment_key(b"%d" % number))).parents[1]
        )
        os.utime(folders[-1] / "whole", (number, number))
    held = build.held.pop(0)  # the oldest one is in use
    build.leave()
    remove_oldest(build.cache, kept=folders[3], most=2)
    assert [folder.exists() for folder in folders] == [True, False, False, True]
    remove_oldest(build.cache, kept=folders[3], most_bytes=1)
    assert folders[0].exists()
    os.close(held)
    remove_oldest(build.cache, kept=folders[3], most_bytes=1)
    assert [folder.exists() for folder in folders] == [False, False, False, True]
