"""``make test``: the suite on SQLite, and what touches a database on PostgreSQL.

Brings what is missing and may be brought (Chromium; under CI=true also
PostgreSQL, Redis and a C compiler). Without arguments three lanes run side by side,
because half of the suite's time is waiting: what needs no browser; whole portals and
the browser; telemetry, then PostgreSQL. Lanes are folders, so that no file is read
twice for SQLite. What the other lanes print follows when all are through. Arguments go
to pytest, and then one run follows the other. pytest's line is the last.
"""

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parent.parent
CI = os.environ.get("CI") == "true"
# They mostly wait for processes of their own.
PORTALS = ("tests/gpuportal", "tests/flows", "tests/faults")
BROWSERS = ("tests/placement/browser", "tests/reservations/browser")
TELEMETRY = "tests/telemetry"
# Every run and every process of every portal reads what the first one compiled.
KEPT_OUT = ("DATABASE_URL", "PYTHONDONTWRITEBYTECODE")
# Nothing was collected: no failure where arguments leave no database test over.
NO_TESTS = 5


def main(arguments: Sequence[str]) -> int:
    """Run everything; return the worst exit status."""
    _bring(("chromium", "chromium-browser"), "chromium")
    if CI:
        # Of one version: the shell uses the browser's files.
        _bring(("chromium-headless-shell",), "chromium chromium-headless-shell")
        _bring(("cc", "gcc", "clang"), "gcc libc6-dev")
        _bring(("redis-server",), "redis-server")
        _bring(("nginx", "/usr/sbin/nginx"), "nginx-light")
        if _postgres_bin() is None:
            _apt("postgresql")
    environ = {k: v for k, v in os.environ.items() if k not in KEPT_OUT}
    with ExitStack() as stack:
        binaries = _postgres_bin()
        if binaries is None and CI:
            print("test: CI=true needs PostgreSQL: apt-get install postgresql")
            return 1
        url = ""
        if binaries is None:
            print(
                "test: SQLite only; for PostgreSQL too: apt-get install postgresql",
                flush=True,
            )
        else:
            url = stack.enter_context(_postgres(binaries))
        on_postgres = [
            Run(
                "once more on PostgreSQL",
                [*arguments, "-m", "not pure and not browser"],
                environ | {"DATABASE_URL": url},
            )
        ]
        behind = on_postgres if url else []
        if arguments:
            first = _pytest(Run("on SQLite", arguments, environ))
            return max([first, *(_or_none(_pytest(run)) for run in behind)])
        watched = [*PORTALS, *BROWSERS]
        elsewhere = [f"--ignore={folder}" for folder in (*watched, TELEMETRY)]
        return _side_by_side(
            Run("without the browser", elsewhere, environ),
            [Run("whole portals and the browser", watched, environ)],
            [Run("telemetry", [TELEMETRY], environ), *behind],
        )


# --- pytest ----------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One call of pytest."""

    title: str
    arguments: Sequence[str]
    environ: dict[str, str]


def _pytest(run: Run, out: TextIO | None = None) -> int:
    """Run pytest, into a file if one is given; return its exit status."""
    print(f"\ntest: {run.title}", file=out, flush=True)
    return subprocess.run(
        [sys.executable, "-m", "pytest", *run.arguments],
        cwd=ROOT,
        env=run.environ,
        stdout=out,
        stderr=subprocess.STDOUT if out else None,
        check=False,
    ).returncode


def _or_none(status: int) -> int:
    """Arguments that leave no test over for a run are no failure of it."""
    return 0 if status == NO_TESTS else status


def _side_by_side(shown: Run, *lanes: Sequence[Run]) -> int:
    """Run every lane, one run after another, beside the first; the worst status."""
    with ExitStack() as stack:
        outs = [
            stack.enter_context(tempfile.TemporaryFile("w+", errors="replace"))
            for _ in lanes
        ]
        with ThreadPoolExecutor(len(lanes)) as pool:
            beside = [
                pool.submit(lambda runs, out: [_pytest(run, out) for run in runs], *one)
                for one in zip(lanes, outs, strict=True)
            ]
            statuses = [_pytest(shown)]
            for lane in beside:
                statuses += lane.result()
        for out in outs:
            out.seek(0)
            shutil.copyfileobj(out, sys.stdout)
        sys.stdout.flush()
    return max(statuses)


# --- what is missing -----------------------------------------------------------


def _bring(programs: Sequence[str], packages: str) -> None:
    """Install Debian packages unless one of the programs is there."""
    if not any(shutil.which(program) for program in programs):
        _apt(packages)


def _apt(packages: str) -> None:
    """Install with apt where that is allowed; say so where it is not."""
    apt = shutil.which("apt-get")
    prefix: list[str] = []
    if os.getuid() != 0:
        prefix = ["sudo", "-n"]
    allowed = apt is not None and (
        not prefix
        or (
            shutil.which("sudo") is not None
            and subprocess.run(
                [*prefix, "true"], capture_output=True, check=False
            ).returncode
            == 0
        )
    )
    if not allowed:
        print(
            f"test: {packages} is missing and cannot be installed from here", flush=True
        )
        return
    print(f"test: installing {packages} ...", flush=True)
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-q"],
        ["apt-get", "install", "-qy", "--no-install-recommends", *packages.split()],
    ):
        done = subprocess.run(
            [*prefix, *command],
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            lines = (done.stderr or done.stdout).strip().splitlines()
            print(f"test: {packages}: {lines[-1] if lines else 'apt failed'}")


# --- a private PostgreSQL --------------------------------------------------------


def _postgres_bin() -> Path | None:
    """Return the folder of the newest PostgreSQL server programs here."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"),
        key=lambda path: float(path.parts[-3]),
    )
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


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
        yield f"postgres://postgres@127.0.0.1:{port}/postgres"
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
