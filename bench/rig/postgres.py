"""A private PostgreSQL for a bench, with fsync as in production. It ends with the
block.
"""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def postgres() -> Iterator[str]:
    """Run a cluster in a temporary folder. Yield its DATABASE_URL.

    Raises:
        SystemExit: the server's programs are not installed.
    """
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    program = found[-1] if found else shutil.which("initdb")
    if program is None:
        raise SystemExit("PostgreSQL is missing: apt-get install postgresql")
    binaries = Path(program).resolve().parent
    folder = Path(tempfile.mkdtemp(prefix="gpb-pg-"))
    data = folder / "data"
    prefix: list[str] = []
    if os.getuid() == 0:
        # The server refuses to run as root.
        user = pwd.getpwnam("postgres")
        os.chown(folder, user.pw_uid, user.pw_gid)
        prefix = [
            *("setpriv", "--reuid", str(user.pw_uid), "--regid", str(user.pw_gid)),
            "--clear-groups",
        ]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ctl = [*prefix, str(binaries / "pg_ctl"), "-D", str(data)]
    options = (
        f"-p {port} -c listen_addresses=127.0.0.1 -c max_connections=200 "
        f"-c unix_socket_directories={folder}"
    )
    try:
        _quiet(
            [
                *(*prefix, str(binaries / "initdb"), "-D", str(data), "-A", "trust"),
                *("-U", "postgres", "-E", "UTF8", "--no-locale"),
            ]
        )
        log = str(folder / "log")
        _quiet([*ctl, "-o", options, "-l", log, "-w", "-t", "60", "start"])
        yield f"postgres://postgres@127.0.0.1:{port}/postgres"
    finally:
        if (data / "postmaster.pid").exists():
            _quiet([*ctl, "-m", "fast", "-w", "stop"])
        shutil.rmtree(folder, ignore_errors=True)


def _quiet(command: list[str]) -> None:
    # No pipe, because the server that pg_ctl starts would keep it open.
    with tempfile.TemporaryFile("w+") as out:
        done = subprocess.run(
            command, cwd="/", stdout=out, stderr=subprocess.STDOUT, check=False
        )
        out.seek(0)
        if done.returncode:
            raise SystemExit(f"PostgreSQL: {out.read()[-2000:].strip()}")
