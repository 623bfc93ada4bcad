"""``make test``: the suite on SQLite, and what touches a database on PostgreSQL.

Brings what is missing and may be brought: the programs of `tests.programs` and the
clients of LDAP and SAML. With arguments, which go to pytest, the two databases go side
by side. Without them the suite is cut into runs of pytest by folder, so that no file is
read twice for SQLite, and three queues of runs go side by side:

- A run that sleeps most of its time, until clocks and deadlines have passed. It takes
  a tenth of a core.
- Runs that mostly wait, for processes and pages. Their tests measure seconds, so they
  go before those that compute.
- Runs that only compute, with low priority: they take what is left of the cores.
  SQLite comes first.

What a run prints follows when it has ended. What failed is printed once more at the
end, where it is found. The last line sums up what all passed.
"""

import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.programs import CI, bring_programs, has_module, last_line, postgres_bin

ROOT = Path(__file__).resolve().parent.parent
SLEEPING = {"telemetry": ["tests/telemetry"]}
"""Runs of the first queue."""
WAITING = {
    "agents of nodes": ["tests/placement/agent", "tests/placement/serving"],
    "stories in the browser": ["tests/flows"],
    "other pages in the browser": [
        "tests/gpuportal/browser",
        "tests/placement/browser",
    ],
    "the calendar in the browser": ["tests/reservations/browser"],
    "whole portals": [
        "tests/faults",
        "tests/gpuportal/supervisor",
        "tests/gpuportal/test_deploy.py",
    ],
}
"""Runs of the second queue, the longest first."""
COMPUTING = {
    "gpuportal": ["tests/gpuportal"],
    "placement": ["tests/placement"],
    "reservations": ["tests/reservations"],
    "all else": ["tests"],
}
"""Runs of the third queue, the longest first. Each leaves to others what is theirs."""
POSTGRESQL_ORDER = ("gpuportal", "placement", "reservations", "all else")
"""The order on PostgreSQL, the longest first, so that both cores end together."""
KILLS_SERVER = "all else"
"""Run whose tests kill a process of the PostgreSQL server, which then ends every
connection. It has a server that no other run uses."""
ON_POSTGRESQL = "not pure and not browser and not once"
NO_DATABASE = (
    "tests/house",
    "tests/placement/agent/gate",
    "tests/placement/agent/process",
    "tests/placement/agent/runtime",
    "tests/placement/agent/serving",
    "tests/placement/planner",
    "tests/placement/rules",
    "tests/reservations/rules",
    "tests/telemetry/agent",
)
"""Folders whose tests touch no database (tests/conftest.py sees to it). To import them
takes ten seconds of CPU, so the runs on PostgreSQL leave them out."""
WAITING_AT_ONCE = 2
COMPUTING_AT_ONCE = os.cpu_count() or 1
LOW_PRIORITY = ("nice", "-n", "10")
TEMPLATE = "gpuportal_template"
"""Name of the migrated PostgreSQL database that tests get copies of."""
KEPT = ROOT / ".pytest_cache" / "d" / "databases"
"""Migrated databases from earlier runs, in the folder of pytest's cache."""
# Every run and every process of every portal reads what the first one compiled.
KEPT_OUT = ("DATABASE_URL", "PYTHONDONTWRITEBYTECODE")
# Nothing was collected: no failure where arguments leave no database test over.
NO_TESTS = 5


def main(arguments: Sequence[str]) -> int:
    """Run everything; return the worst exit status."""
    bring_programs()
    _bring_modules()
    with ExitStack() as stack:
        binaries = postgres_bin()
        if binaries is None and CI:
            print("test: CI=true needs PostgreSQL: apt-get install postgresql")
            return 1
        servers: list[str] = []
        if binaries is None:
            print(
                "test: SQLite only; for PostgreSQL too: apt-get install postgresql",
                flush=True,
            )
        else:
            servers = [
                stack.enter_context(_postgres(binaries))
                for _ in range(1 if arguments else 2)
            ]
        if arguments:
            return _chosen(arguments, servers[0] if servers else "")
        return _whole(servers)


# --- pytest ----------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One call of pytest."""

    title: str
    arguments: Sequence[str]
    url: str = ""
    """Address of the PostgreSQL database; SQLite without one."""
    prefix: Sequence[str] = ()

    def start(self, out: int | None = None) -> "subprocess.Popen[str]":
        """Start it. What it prints goes where ours goes, or into a pipe."""
        return subprocess.Popen(
            [*self.prefix, sys.executable, "-m", "pytest", *self.arguments],
            cwd=ROOT,
            env=_environ(self.url),
            stdin=None if out is None else subprocess.DEVNULL,
            stdout=out,
            stderr=None if out is None else subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def status(self, code: int) -> int:
        """Return the exit status that counts.

        A run that has no database test for PostgreSQL has not failed. A run that a
        signal ended, which is a negative code, has.
        """
        return 0 if code == NO_TESTS and self.url else abs(code)


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    title: str
    status: int
    """Exit status that counts."""
    counts: dict[str, int]
    """Number of tests that passed, failed and so on."""
    failures: str
    """What pytest printed about the failures; everything if it said nothing of them."""


def _environ(url: str) -> dict[str, str]:
    environ = {k: v for k, v in os.environ.items() if k not in KEPT_OUT}
    return environ | ({"DATABASE_URL": url} if url else {})


def _chosen(arguments: Sequence[str], server: str) -> int:
    """Run what the arguments choose, on both databases at once."""
    first = Run("on SQLite", arguments)
    second = Run(
        "once more on PostgreSQL",
        [*arguments, "-m", ON_POSTGRESQL],
        f"{server}/{TEMPLATE}",
    )
    print(f"\ntest: {first.title}", flush=True)
    beside = None
    with first.start() as shown:
        if server:
            _make_postgresql([server])
            beside = second.start(subprocess.PIPE)
        status = first.status(shown.wait())
    if beside is not None:
        said, _ = beside.communicate()
        print(f"\ntest: {second.title}\n{said}", end="", flush=True)
        status = max(status, second.status(beside.returncode))
    return status


def _whole(servers: Sequence[str]) -> int:
    """Run the whole suite.

    Args:
        servers: addresses of no or two PostgreSQL servers. One is for the run of
            `KILLS_SERVER` alone.
    """
    began = time.monotonic()
    apart = [path for paths in (SLEEPING | WAITING).values() for path in paths]
    sleeping = [Run(title, paths) for title, paths in SLEEPING.items()]
    waiting = [Run(title, paths) for title, paths in WAITING.items()]
    parts = {
        title: [*paths, *_left_out(paths, COMPUTING)]
        for title, paths in COMPUTING.items()
    }
    ignored = [f"--ignore={path}" for path in apart]
    computing = [
        Run(title, [*paths, *ignored], prefix=LOW_PRIORITY)
        for title, paths in parts.items()
    ]
    no_database = [f"--ignore={path}" for path in NO_DATABASE]
    again = [
        Run(
            f"{title}, once more on PostgreSQL",
            [*parts[title], *no_database, "-m", ON_POSTGRESQL],
            f"{servers[title == KILLS_SERVER]}/{TEMPLATE}",
            LOW_PRIORITY,
        )
        for title in sorted(parts, key=POSTGRESQL_ORDER.index)
        if servers
    ]
    with (
        ThreadPoolExecutor(len(SLEEPING)) as first,
        ThreadPoolExecutor(WAITING_AT_ONCE) as second,
        ThreadPoolExecutor(COMPUTING_AT_ONCE) as third,
    ):
        template = third.submit(_make_postgresql, servers) if servers else None
        file = third.submit(_make_sqlite)
        on_sqlite = [first.submit(_reported, run, began, file) for run in sleeping]
        on_sqlite += [second.submit(_reported, run, began, file) for run in waiting]
        on_sqlite += [third.submit(_reported, run, began, file) for run in computing]
        on_postgresql = [third.submit(_reported, run, began, template) for run in again]
        try:
            done = [one.result() for one in on_sqlite]
            sqlite_seconds = time.monotonic() - began
            done += [one.result() for one in on_postgresql]
        except BaseException:
            # After Ctrl-C nothing begins that has not begun.
            for pool in (first, second, third):
                pool.shutdown(wait=False, cancel_futures=True)
            raise
    seconds = time.monotonic() - began
    failed = [one for one in done if one.status]
    for one in failed:
        print(f"\ntest: failed: {one.title}\n{one.failures}")
    total: Counter[str] = Counter()
    for one in done:
        total.update(one.counts)
    counted = ", ".join(f"{number} {word}" for word, number in total.items())
    print(
        f"\ntest: {_clock(sqlite_seconds)} until SQLite was through, "
        f"{_clock(seconds - sqlite_seconds)} more for PostgreSQL\n"
        f"==== {counted} in {seconds:.2f}s ({_clock(seconds)}) ====",
        flush=True,
    )
    return max(one.status for one in done)


def _left_out(paths: Sequence[str], parts: dict[str, list[str]]) -> list[str]:
    """Leave to other parts what is theirs below these paths."""
    others = [path for part in parts.values() for path in part]
    return [
        f"--ignore={other}"
        for other in others
        if any(other.startswith(f"{path}/") for path in paths)
    ]


def _reported(run: Run, began: float, after: "Future[None] | None" = None) -> Result:
    """Run it, then print what it said."""
    if after is not None:
        after.result()
    started = time.monotonic()
    print(f"test: {_clock(started - began)} {run.title} ...", flush=True)
    process = run.start(subprocess.PIPE)
    said, _ = process.communicate()
    ended = time.monotonic()
    # In one piece, whatever else ends now.
    sys.stdout.write(
        f"\ntest: {run.title}, from {_clock(started - began)} "
        f"to {_clock(ended - began)}\n{said}"
    )
    sys.stdout.flush()
    last = said.rstrip().rpartition("\n")[2]
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", last)}
    head = re.search(r"^=+ (?:ERRORS|FAILURES) =+$", said, re.MULTILINE)
    failures = said[head.start() :] if head else said
    return Result(run.title, run.status(process.returncode), counts, failures)


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes}:{seconds:02d}"


def _make_sqlite() -> None:
    """Keep the migrated SQLite file that every run copies."""
    _make(str(KEPT))


def _make_postgresql(servers: Sequence[str]) -> None:
    """Make the PostgreSQL database that every run copies, on each server."""
    _make(str(KEPT), str(postgres_bin()), *(f"{one}/{TEMPLATE}" for one in servers))


def _make(*arguments: str) -> None:
    command = [sys.executable, "-m", "tests.migrated", *arguments]
    subprocess.run(command, cwd=ROOT, check=True)


# --- what is missing -----------------------------------------------------------


MODULES = {
    "ldap": "requirements-ldap.txt",
    "onelogin": "requirements-saml.txt",
    "opentelemetry.sdk": "requirements-otel.txt",
}
"""Modules that most portals do not need, and the file that pins them."""


def _bring_modules() -> None:
    """Install modules that are missing with pip, together.

    A module that cannot be installed costs the others nothing.
    """
    missing = {name: file for name, file in MODULES.items() if not has_module(name)}
    if not missing or not _pip(list(missing.values())):
        return
    for name, file in missing.items() if len(missing) > 1 else ():
        why = _pip([file])
        if why:
            print(f"test: {name}: {why}", flush=True)


def _pip(files: Sequence[str]) -> str:
    """Install the packages of files; return why that failed, or ""."""
    print(f"test: installing {', '.join(files)} ...", flush=True)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "install", "--disable-pip-version-check"),
            *("--no-input", "-q", *(word for file in files for word in ("-r", file))),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return last_line(done, "pip failed") if done.returncode else ""


# --- a private PostgreSQL --------------------------------------------------------


@contextmanager
def _postgres(binaries: Path) -> Iterator[str]:
    """Run a cluster of its own in a temporary folder; yield its address."""
    folder = Path(tempfile.mkdtemp(prefix="gpt-pg-"))
    data = folder / "data"
    prefix: list[str] = []
    if os.getuid() == 0:
        # The server refuses to run as root.
        user = _plain_user()
        os.chown(folder, user.pw_uid, user.pw_gid)
        prefix = [
            *("setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid)),
            "--clear-groups",
        ]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = (
        f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} "
        "-c fsync=off -c synchronous_commit=off -c full_page_writes=off "
        # Every test takes its rows back: what is dead goes at once, and what was
        # counted in the middle of one test misleads the plans of the next.
        "-c autovacuum_naptime=1s -c autovacuum_vacuum_cost_delay=0 "
        "-c autovacuum_analyze_threshold=2000000000"
    )
    ctl = str(binaries / "pg_ctl")
    try:
        _quiet(
            [
                *(*prefix, str(binaries / "initdb"), "-D", str(data)),
                *("-A", "trust", "-U", "postgres", "-E", "UTF8", "--no-locale", "-N"),
            ],
            folder,
        )
        _quiet(
            [
                *(*prefix, ctl, "-D", str(data), "-o", options),
                *("-l", str(folder / "log"), "-w", "-t", "60", "start"),
            ],
            folder,
        )
        yield f"postgres://postgres@127.0.0.1:{port}"
    finally:
        if (data / "postmaster.pid").exists():
            _quiet(
                [*prefix, ctl, "-D", str(data), "-m", "immediate", "-w", "stop"], folder
            )
        shutil.rmtree(folder, ignore_errors=True)


def _plain_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise SystemExit("test: neither a user postgres nor nobody to run PostgreSQL as")


def _quiet(command: Sequence[str], folder: Path) -> None:
    """Run a command; show what it said only when it fails.

    Into a file and not a pipe: the server started by pg_ctl keeps it open.
    """
    said = folder.parent / f"{folder.name}.out"
    with said.open("w") as out:
        done = subprocess.run(
            command, cwd=folder, stdout=out, stderr=subprocess.STDOUT, check=False
        )
    text = said.read_text()
    said.unlink()
    if done.returncode != 0:
        raise SystemExit(f"test: PostgreSQL: {text.strip()[-2000:]}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
