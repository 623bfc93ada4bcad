"""The programs that the suite needs: ``python -m tests.programs`` installs them.

Chromium, and under CI=true also PostgreSQL, Redis, slapd, a C compiler and others, with
apt where that is allowed. It needs only the standard library, so that the set-up can
install them beside the Python packages.
"""

import importlib.util
import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

CI = os.environ.get("CI") == "true"
ALWAYS = ((("chromium", "chromium-browser"), "chromium"),)
"""Programs, of which one is enough, and the Debian packages that bring them."""
IN_CI = (
    # Of one version: the shell uses the browser's files.
    (("chromium-headless-shell",), "chromium chromium-headless-shell"),
    (("cc", "gcc", "clang"), "gcc libc6-dev"),
    (("redis-server",), "redis-server"),
    (("nginx", "/usr/sbin/nginx"), "nginx-light"),
    (("sshd", "/usr/sbin/sshd"), "openssh-server openssh-client"),
    (("tmux",), "tmux"),
    (("systemd-run",), "systemd"),
    (
        ("slurmctld", "/usr/sbin/slurmctld"),
        "slurmctld slurmd slurm-client munge",
    ),
    (("zsh",), "zsh"),
    (("fish",), "fish"),
    (("slapd", "/usr/sbin/slapd"), "slapd"),
    (("promtool",), "prometheus"),
)


def bring_programs() -> None:
    """Install the Debian packages of programs that are missing, together."""
    missing = [
        packages
        for programs, packages in (*ALWAYS, *(IN_CI if CI else ()))
        if not any(shutil.which(program) for program in programs)
    ]
    if CI and postgres_bin() is None:
        missing.append("postgresql")
    if not has_module("ldap"):
        # The client of LDAP directories is built here.
        headers = {"/usr/include/ldap.h": "libldap2-dev libsasl2-dev"}
        headers[f"{sysconfig.get_path('include')}/Python.h"] = "python3-dev"
        missing += [names for file, names in headers.items() if not Path(file).exists()]
        if shutil.which("cc") is None:
            missing.append("gcc libc6-dev")
    if missing:
        _apt(missing)


def has_module(name: str) -> bool:
    """Return whether Python finds a module here."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def postgres_bin() -> Path | None:
    """Return the folder of the newest PostgreSQL server programs here."""
    found = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"),
        key=lambda path: float(path.parts[-3]),
    )
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


def last_line(done: "subprocess.CompletedProcess[str]", otherwise: str) -> str:
    """Return the last line that a program printed, or other words for none."""
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else otherwise


def _apt(packages: Sequence[str]) -> None:
    """Install with apt where that is allowed; say so where it is not.

    Args:
        packages: each one or more names with spaces between. If not all can be
            installed together, each is tried alone.
    """
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
    names = " ".join(dict.fromkeys(" ".join(packages).split()))
    if not allowed:
        print(f"test: {names} is missing and cannot be installed from here", flush=True)
        return

    def run(*words: str) -> str:
        done = subprocess.run(
            [*prefix, "apt-get", *words],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            check=False,
        )
        return last_line(done, "apt failed") if done.returncode else ""

    def install(names: str) -> str:
        return run("install", "-qy", "--no-install-recommends", *names.split())

    print(f"test: installing {names} ...", flush=True)
    why = run("update", "-q")
    if why:
        print(f"test: apt-get update: {why}", flush=True)
    if not install(names):
        return
    for one in packages:
        why = install(one)
        if why:
            print(f"test: {one}: {why}", flush=True)


if __name__ == "__main__":
    bring_programs()
