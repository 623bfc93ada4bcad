"""Virtual environments that the node builds from a requirements file or a uv project.

This runs as the Job's user, in the Job's first process, under the Job's limits. Each
environment is built once and kept in a folder of that person:

    lock                    held while an environment is built or removed
    KEY-xxxxxxxx/venv       the environment
    KEY-xxxxxxxx/whole      written last. Each Job that uses it holds a shared lock

A virtual environment has its own path in its programs, so it is not renamed when it is
whole. An entry without ``whole`` is what a killed build left. It is never used, and the
next build removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from placement.agent.process.program_lookup import SYSTEM_PATH
from placement.agent.storage import folder_tree
from placement.agent.storage.folder_size import (
    FoldersTooDeep,
    FolderWatch,
    size_bytes,
)

CACHE = Path(".cache", "gpuportal", "environments")
"""The folder of the environments in the home of a person who has one."""
MOST_ENVIRONMENTS = 8
MOST_BYTES = 60 * 2**30
"""Of all environments of one person on one node."""
MOST_REQUIREMENTS_BYTES = 2**20
MOST_FILES = 20
"""Files that a requirements file may include."""
LOCK_FILE = "uv.lock"
LOOK_SECONDS = 0.5
CHUNK_BYTES = 65_536
MOST_REASON_CHARACTERS = 300
WHOLE, VENV = "whole", "venv"
INCLUDE = re.compile(rb"^[ \t]*(?:-r|-c|--requirement|--constraint)[\s=]*(\S+)", re.M)
LOCAL = re.compile(rb"^[ \t]*+(?:[-.]|[^#\n]*[/\\])", re.M)
"""A line of a requirements file that may depend on the folder of the file."""
FIRST_HELD = 100
"""The least descriptor of the lock that a Job keeps. Shell scripts use 3 to 9."""


class BuildStopped(Exception):
    """The Job was stopped while its environment was built."""


@dataclass(frozen=True, slots=True)
class EnvironmentBuild:
    """What is built: the key of its content, and the commands in their order."""

    key: str
    source: Path
    steps: tuple[tuple[str, ...], ...]
    """``{venv}`` in a word stands for the environment's folder."""
    contents: tuple[bytes, ...]


def environment_key(*parts: bytes) -> str:
    """Return the name of what is built from these parts.

    >>> environment_key(b"ab", b"c") == environment_key(b"a", b"bc")
    False
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(b"%d:" % len(part) + part)
    return digest.hexdigest()[:24]


def requirement_contents(path: Path) -> tuple[bytes, ...]:
    """Return the content of a requirements file and of the files that it includes.

    The folder follows them if a line may depend on it, such as ``./my-package``.

    Raises:
        OSError: the file cannot be read, is no regular file, or is too large.
    """
    waiting, found = [path], dict[Path, bytes]()
    while waiting and len(found) <= MOST_FILES:
        here = waiting.pop()
        if here in found:
            continue
        try:
            found[here] = _content(here)
        except FileNotFoundError:
            if here == path:
                raise
            continue  # pip names the missing file and the line
        for word in INCLUDE.findall(found[here]):
            if b"://" not in word and b"\0" not in word:
                waiting.append(here.parent / os.fsdecode(word))
    if waiting:
        raise OSError(f"{path} includes more than {MOST_FILES} files")
    contents = tuple(found.values())
    if any(LOCAL.search(content) for content in contents):
        return (*contents, os.fsencode(path.parent))
    return contents


def project_contents(project: Path) -> tuple[bytes, ...]:
    """Return what determines the environment of a uv project. Raises OSError."""
    found = [_content(project / LOCK_FILE)]
    for name in ("pyproject.toml", ".python-version"):
        try:
            found.append(_content(project / name))
        except FileNotFoundError:
            found.append(b"")
    return (*found, os.fsencode(project))


def built_programs(
    source: Path,
    cache: Path,
    *,
    env: Mapping[str, str],
    most_bytes: int = 0,
    log: int = 2,
) -> str:
    """Return the folder of the programs of an environment, and build it if needed.

    The calling process keeps a shared lock on it, also after exec, so that no other Job
    removes it.

    Args:
        source: the requirements file, or the folder of the uv project.
        cache: the folder of this person's environments. It is created if it is missing.
        env: the Job's environment variables, which the build gets.
        most_bytes: the size that it may have. 0: MOST_BYTES.
        log: the descriptor to which the output of the build goes.

    Raises:
        OSError: it cannot be built. The text is the reason.
    """
    wanted = _build_of(source, env)
    cache.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = _used(wanted.key, cache)
    if folder is None:
        with _stop_signal(), _locked(cache, log):
            folder = _used(wanted.key, cache)
            if folder is None:
                most = min(most_bytes or MOST_BYTES, MOST_BYTES)
                _build(wanted, cache, env, most, log)
                folder = _used(wanted.key, cache)
            if folder is None:
                raise OSError(f"the environment of {source} was removed meanwhile")
            remove_oldest(cache, kept=folder)
    os.utime(folder / WHOLE)
    return str(folder / VENV / "bin")


def remove_oldest(
    cache: Path, *, kept: Path, most: int = MOST_ENVIRONMENTS, most_bytes: int = 0
) -> None:
    """Remove the environments that were not used for longest, until the rest fits.

    Those that a running Job uses remain. Call it under the lock of the cache.
    """
    ages = {folder: _last_use(folder) for folder in _entries(cache)}
    sizes = {folder: size_bytes(folder) for folder in ages}
    for folder in sorted(ages, key=ages.__getitem__):
        fits = sum(sizes.values()) <= (most_bytes or MOST_BYTES)
        if len(sizes) <= most and fits:
            return
        if folder == kept or not _is_unused(folder):
            continue
        _remove(folder)
        del sizes[folder]


def _build_of(source: Path, env: Mapping[str, str]) -> EnvironmentBuild:
    """Return what to build. Raises OSError, also if a program for it is missing."""
    if source.is_dir():
        homes = f"{env['HOME']}/.local/bin:{env['HOME']}/.cargo/bin"
        uv = shutil.which("uv", path=f"{homes}:{SYSTEM_PATH}")
        if uv is None:
            raise FileNotFoundError(
                f"the project {source} has no environment yet, and uv is not installed "
                f"on this node. Install uv there, or make it: cd {source} && uv sync"
            )
        words = (uv, "sync", "--frozen", "--no-progress", "--project", str(source))
        contents = project_contents(source)
        return EnvironmentBuild(
            environment_key(b"uv", *contents), source, (words,), contents
        )
    python = shutil.which("python3", path=SYSTEM_PATH)
    if python is None:
        raise FileNotFoundError("python3 is not installed on this node")
    probe = subprocess.run(
        [python, "-c", "import sys, ensurepip, venv; print(sys.version)"],
        env={**env, "PATH": SYSTEM_PATH},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if probe.returncode:
        raise FileNotFoundError(
            f"{python} cannot make environments: the system's package python3-venv is "
            "not installed on this node"
        )
    contents = requirement_contents(source)
    key = environment_key(b"pip", python.encode(), probe.stdout, *contents)
    pip = ("-m", "pip", "install", "--no-input", "--disable-pip-version-check")
    steps = (
        (python, "-m", "venv", "{venv}"),
        ("{venv}/bin/python", *pip, "--progress-bar=off", "-r", str(source)),
    )
    return EnvironmentBuild(key, source, steps, contents)


def _build(
    wanted: EnvironmentBuild,
    cache: Path,
    env: Mapping[str, str],
    most_bytes: int,
    log: int,
) -> None:
    """Build an environment completely, or remove what there is of it."""
    source, is_project = wanted.source, wanted.source.is_dir()
    _say(log, f"builds the environment of {source}. Later jobs use it again")
    for folder in cache.iterdir():
        if folder.is_dir() and not (folder / WHOLE).exists():
            _remove(folder)
    entry = Path(tempfile.mkdtemp(prefix=f"{wanted.key}-", dir=cache))
    venv = str(entry / VENV)
    known = {**env, "PATH": SYSTEM_PATH, "UV_PROJECT_ENVIRONMENT": venv}
    try:
        for step in wanted.steps:
            words = [word.replace("{venv}", venv) for word in step]
            where = source if is_project else source.parent
            _run(words, env=known, where=where, log=log, most=(entry, most_bytes))
        size = size_bytes(entry)
        if size > most_bytes:
            raise OSError(f"it takes {size} bytes, and may take {most_bytes}")
        again = project_contents if is_project else requirement_contents
        if again(source) != wanted.contents:
            raise OSError("it was changed during the build")
        (entry / WHOLE).write_text(f"{source}\n")
    except FoldersTooDeep:
        _remove(entry)
        raise OSError(f"the environment of {source} is nested too deeply") from None
    except OSError as error:
        _remove(entry)
        raise OSError(
            f"the environment of {source} could not be built: {error}"
        ) from error
    except BaseException:
        _remove(entry)
        raise
    _say(log, f"the environment of {source} is built")


def _run(
    words: Sequence[str],
    *,
    env: Mapping[str, str],
    where: Path,
    log: int,
    most: tuple[Path, int],
) -> None:
    """Run one command of a build, and copy its output to the log.

    It is in the Job's process group, so a stop of the Job reaches it.

    Raises:
        OSError: it failed, with its exit code and its last line, or it takes too much.
    """
    last = _LastLine()
    with (
        FolderWatch((most[0],), most[1]) as watch,
        subprocess.Popen(
            words,
            env=dict(env),
            cwd=where,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        assert process.stdout is not None
        pipe = process.stdout.fileno()
        try:
            while True:
                # What it leaves in the background may hold the pipe open.
                ended = process.poll() is not None
                ready, _, _ = select.select(
                    [pipe], [], [], 0 if ended else LOOK_SECONDS
                )
                text = os.read(pipe, CHUNK_BYTES) if ready else b""
                if text:
                    _write_all(log, text)
                    last.add(text)
                elif ready or ended:
                    break
                if watch.why:
                    raise OSError(watch.why)
            code = process.wait()
        finally:
            process.kill()
    if code:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        tool = next((name for name in ("pip", "venv") if name in words), "uv")
        raise OSError(f"{tool} ended with {how}: {last.text()}")


class _LastLine:
    """The line of an output that says why it failed: its last error, else its last."""

    def __init__(self) -> None:
        self.line = self.error = self.rest = b""

    def add(self, text: bytes) -> None:
        *lines, rest = (self.rest + text).split(b"\n")
        self.rest = rest[-CHUNK_BYTES:]
        for line in lines:
            self._take(line)

    def _take(self, line: bytes) -> None:
        self.line = line.strip() or self.line
        if line.lower().lstrip().startswith(b"error"):
            self.error = line.strip()

    def text(self) -> str:
        self._take(self.rest)
        line = (self.error or self.line).decode(errors="replace")
        return line[:MOST_REASON_CHARACTERS] or "no output"


def _used(key: str, cache: Path) -> Path | None:
    """Return the whole environment of a key, which this process now holds."""
    for folder in sorted(cache.glob(f"{key}-*")):
        path = folder / WHOLE
        with contextlib.suppress(FileNotFoundError):
            handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
            fcntl.flock(handle, fcntl.LOCK_SH)
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                fcntl.fcntl(handle, fcntl.F_DUPFD, FIRST_HELD)  # exec keeps it
                os.close(handle)
                return folder
            os.close(handle)  # removed between the two steps
    return None


def _is_unused(folder: Path) -> bool:
    """Return whether no Job holds an environment, and keep others from taking it."""
    handle = os.open(folder / WHOLE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / WHOLE).unlink()
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def _entries(cache: Path) -> Iterator[Path]:
    """Return the whole environments of a cache."""
    return (path.parent for path in cache.glob(f"*/{WHOLE}"))


def _last_use(folder: Path) -> float:
    return (folder / WHOLE).stat().st_mtime


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder_tree.remove(folder)


def _content(path: Path) -> bytes:
    """Return the content of a regular file. Raises OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path} is not a regular file")
        content = file.read(MOST_REQUIREMENTS_BYTES + 1)
    if len(content) > MOST_REQUIREMENTS_BYTES:
        raise OSError(f"{path} has more than {MOST_REQUIREMENTS_BYTES // 2**20} MiB")
    return content


@contextlib.contextmanager
def _locked(cache: Path, log: int) -> Iterator[None]:
    """Hold the lock of a person's cache. Wait for another Job that holds it."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(cache / "lock", flags, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say(log, "waits for another job that builds an environment")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _stop_signal() -> Iterator[None]:
    """Let a stop of the Job interrupt the build, which is then removed.

    Raises:
        OSError: the Job was stopped.
    """

    def stopped(*_: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # while the build is removed
        raise BuildStopped

    before = signal.signal(signal.SIGTERM, stopped)
    try:
        yield
    except BuildStopped:
        raise OSError("the job was stopped while its environment was built") from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(log: int, text: str) -> None:
    _write_all(log, f"gpuportal: {text}\n".encode(errors="replace"))


def _write_all(log: int, text: bytes) -> None:
    while text:
        text = text[os.write(log, text) :]
