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

import codecs
import contextlib
import errno
import fcntl
import hashlib
import os
import re
import select
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from placement.agent.process import process_tree
from placement.agent.process.program_lookup import SYSTEM_PATH, check_closed
from placement.agent.storage import folder_tree
from placement.agent.storage.folder_size import (
    FoldersTooDeep,
    FolderWatch,
    size_bytes,
)
from telemetry.proc_stat import descendants

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
END_OF_OUTPUT = b"[end of output]"
CAUSE = re.compile(rb"(?:Caused by|cause):\s*(.*)")
"""The line of uv with the cause of its error. The last one is the first cause."""
WRONG_HASHES = b"THESE PACKAGES DO NOT MATCH THE HASHES"
"""Of pip's sentence of 300 characters. The package is in the next line."""
WHOLE, VENV = "whole", "venv"
ENTRY = re.compile(r"[0-9a-f]{24}-[a-z0-9_]{8}")
"""The name of an environment's folder. Nothing else in the cache is ever removed: it
may be a link to a folder that its owner uses for other files, too.
"""
INCLUDE = re.compile(r"\s*+(?:-r|-c|--requirement|--constraint)[\s=]*(\S.*)")
LOCAL = re.compile(r"\s*+(?:[-.]|[^#]*[/\\])")
"""A line of a requirements file that may depend on the folder of the file."""
_WEB_ADDRESS = r"https?://[^\s#]++"
ANYWHERE = re.compile(
    r"\s*+--(?:pre|prefer-binary|no-index|require-hashes)\s*+"
    r"|\s*+--(?:no-binary|only-binary|trusted-host)[\s=]++[\w.:,-]++\s*+"
    rf"|\s*+(?:-i|--index-url|--extra-index-url)[\s=]++{_WEB_ADDRESS}\s*+"
)
"""A line of options that means the same in every folder."""
VARIABLE = re.compile(r"\$\{([A-Z0-9_]+)\}")
"""An environment variable that pip replaces in a requirements file."""
CODING = re.compile(rb"\s*#.*?coding[:=]\s*([-\w.]+)")
MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
"""Byte order marks. Redirection in Windows PowerShell writes UTF-16 with one."""
SECRET = re.compile(rb"(?<=://)(?!git@)[^\s/'\"]+@")
"""User and password, or a token, in an address."""
FIRST_HELD = 100
"""The least descriptor of the lock that a Job keeps. Shell scripts use 3 to 9."""


class BuildStopped(Exception):
    """The Job was stopped while its environment was built."""


@dataclass(frozen=True, slots=True)
class EnvironmentBuild:
    """The key of an environment's content, and the commands that build it, in order."""

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


def requirement_contents(path: Path, env: Mapping[str, str]) -> tuple[bytes, ...]:
    """Return what determines the environment of a requirements file.

    That is its content, that of the files that it includes, and the values of the
    variables in them. The folder follows if a line may depend on it, such as
    ``./my-package``.

    Raises:
        OSError: the file cannot be read, is no regular file, is too large, is not in
            the encoding that it declares (default: UTF-8), or any user may write it.
    """
    waiting, found = [path], dict[Path, bytes]()
    variables, is_local = set[str](), False
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
        check_closed(here)
        text = _text(here, found[here])
        variables |= set(VARIABLE.findall(text))
        for line in text.replace("\\\n", "").splitlines():
            word = _included(line, env)
            if word and "://" not in word and "\0" not in word:
                waiting.append(here.parent / word)
            elif not ANYWHERE.fullmatch(line):
                is_local = is_local or LOCAL.match(line) is not None
    if waiting:
        raise OSError(f"{path} includes more than {MOST_FILES} files")
    values = [f"{name}={env[name]}" for name in sorted(variables) if name in env]
    folder = [os.fsencode(path.parent)] if is_local else []
    return (*found.values(), *(value.encode() for value in values), *folder)


def _included(line: str, env: Mapping[str, str]) -> str:
    """Return the file that a line of a requirements file includes; "": none."""
    found = INCLUDE.match(line)
    if found is None:
        return ""
    with contextlib.suppress(ValueError):  # pip names the missing quotation mark
        words = shlex.split(found[1], comments=True)
        if words:
            return VARIABLE.sub(lambda name: env.get(name[1], name[0]), words[0])
    return ""


def _text(path: Path, content: bytes) -> str:
    """Return the text of a requirements file, decoded as pip does.

    Raises:
        OSError: it is in another encoding.
    """
    mark, encoding = next(
        (known for known in MARKS if content.startswith(known[0])), (b"", "utf-8")
    )
    content = content[len(mark) :]
    if not mark:
        head = content.split(b"\n", 2)[:2]
        declared = [found[1].decode() for line in head if (found := CODING.match(line))]
        encoding = declared[0] if declared else encoding
    try:
        return content.decode(encoding).replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise OSError(
            f"line {line} of {path} is not in {encoding}. Save the file as UTF-8"
        ) from None
    except LookupError:
        raise OSError(f"{path} names an unknown encoding, {encoding}") from None


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
    _make_cache(cache)
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


def _make_cache(cache: Path) -> None:
    """Make the folder of the environments.

    Raises:
        OSError: it cannot be written, or other users may write it or a folder above.
    """
    try:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(cache, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise OSError(
            f"environments are kept in {cache}, which cannot be written: "
            f"{error.strerror}"
        ) from error
    check_closed(cache)


def remove_oldest(
    cache: Path, *, kept: Path, most: int = MOST_ENVIRONMENTS, most_bytes: int = 0
) -> None:
    """Remove the environments that were not used for longest, until the rest fits.

    Those that a running Job uses remain. Call it under the lock of the cache.
    """
    ages = {folder: _last_use(folder) for folder in _entries(cache)}
    sizes = {folder: _size_bytes(folder) for folder in ages}
    for folder in sorted(ages, key=ages.__getitem__):
        fits = sum(sizes.values()) <= (most_bytes or MOST_BYTES)
        if len(sizes) <= most and fits:
            return
        if folder == kept or not _is_unused(folder):
            continue
        _remove(folder)
        del sizes[folder]


def _size_bytes(folder: Path) -> int:
    """Return the size of an environment. All that there may be, if it is too deep."""
    try:
        return size_bytes(folder)
    except FoldersTooDeep:
        return MOST_BYTES + 1


def _build_of(source: Path, env: Mapping[str, str]) -> EnvironmentBuild:
    """Return what to build. Raises OSError, also if a program for it is missing."""
    if source.is_dir():
        check_closed(source)
        homes = f"{env['HOME']}/.local/bin:{env['HOME']}/.cargo/bin"
        uv = shutil.which("uv", path=f"{homes}:{SYSTEM_PATH}")
        if uv is None:
            raise FileNotFoundError(
                f"the project {source} has no environment yet, and uv is not installed "
                f"on this node. Install uv there, or make it: cd {source} && uv sync"
            )
        words = (uv, "sync", "--locked", "--no-progress", "--project", str(source))
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
    contents = requirement_contents(source, env)
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
    for folder in _folders(cache):
        if not (folder / WHOLE).exists():
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
        again = (
            project_contents(source)
            if is_project
            else requirement_contents(source, env)
        )
        if again != wanted.contents:
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
    output = _BuildOutput(log)
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
                # A process in the background may hold the pipe open.
                ended = process.poll() is not None
                ready, _, _ = select.select(
                    [pipe], [], [], 0 if ended else LOOK_SECONDS
                )
                text = os.read(pipe, CHUNK_BYTES) if ready else b""
                if text:
                    output.add(text)
                elif ready or ended:
                    break
                if watch.why:
                    raise OSError(watch.why)
            code = process.wait()
        finally:
            output.close()
            if process.poll() is None:
                # Its compilers, too: they would write on while it is removed.
                process_tree.end_all(
                    [process.pid, *(one.pid for one in descendants(process.pid))]
                )
    if code:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        tool = next((name for name in ("pip", "venv") if name in words), "uv")
        raise OSError(f"{tool} ended with {how}: {output.reason()}")


class _BuildOutput:
    """Copies the output of a build to the log, line by line, without passwords.

    ``reason`` is the line that says why the build failed.
    """

    def __init__(self, log: int) -> None:
        self.log = log
        self.line = self.error = self.cause = self.rest = b""

    def add(self, text: bytes) -> None:
        *lines, rest = (self.rest + text).split(b"\n")
        if len(rest) > CHUNK_BYTES:
            lines, rest = [*lines, rest], b""
        self.rest = rest
        for line in lines:
            self._take(line + b"\n")

    def close(self) -> None:
        """Copy the last line, which may have no end."""
        if self.rest:
            self._take(self.rest)
            self.rest = b""

    def _take(self, line: bytes) -> None:
        line = SECRET.sub(b"****@", line)
        _write_all(self.log, line)
        line = line.strip()
        if line == END_OF_OUTPUT:  # of the package's own setup, which pip quotes
            self.cause = self.line
        if WRONG_HASHES in self.line:
            self.error = b"a hash in the requirements file is not that of the package:"
            self.cause = line.partition(b" from ")[0]
        elif line.lower().startswith(b"error"):
            self.error = line
        elif found := CAUSE.fullmatch(line):
            self.cause = found[1]
        self.line = line or self.line

    def reason(self) -> str:
        """Return the last error with the line that caused it, else the last line."""
        line = self.error or self.line
        if line.endswith(b":") and line != self.line:
            self.cause = self.cause or self.line
        words = [word.decode(errors="replace") for word in (line, self.cause) if word]
        return ": ".join(words).replace("::", ":")[:MOST_REASON_CHARACTERS] or (
            "no output"
        )


def _used(key: str, cache: Path) -> Path | None:
    """Return the whole environment of a key, which this process now holds."""
    for folder in sorted(_folders(cache)):
        if not folder.name.startswith(f"{key}-"):
            continue
        path = folder / WHOLE
        # Removed meanwhile, or replaced by its owner: it is built again.
        with contextlib.suppress(OSError), _opened(path) as handle:
            fcntl.flock(handle, fcntl.LOCK_SH)
            if os.path.samestat(os.fstat(handle), path.stat()):
                fcntl.fcntl(handle, fcntl.F_DUPFD, FIRST_HELD)  # exec keeps it
                return folder
    return None


def _is_unused(folder: Path) -> bool:
    """Return whether no Job holds an environment, and keep others from taking it."""
    with contextlib.suppress(OSError), _opened(folder / WHOLE) as handle:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / WHOLE).unlink()
        return True
    return False


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a file for a lock. On a shared home a lock needs a file to write to."""
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield handle
    finally:
        os.close(handle)


def _folders(cache: Path) -> list[Path]:
    """Return the folders of environments, also of those that are not whole."""
    return [path for path in cache.iterdir() if ENTRY.fullmatch(path.name)]


def _entries(cache: Path) -> Iterator[Path]:
    """Return the whole environments of a cache."""
    return (folder for folder in _folders(cache) if (folder / WHOLE).exists())


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
    try:
        handle = os.open(cache / "lock", flags, 0o600)
    except OSError as error:
        raise OSError(f"{cache}/lock cannot be used: {error.strerror}") from error
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
