"""The Makefile and the set-up script: every failure is one clear line."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.house.walk import ROOT

TOOLS = (
    *("sh", "awk", "sed", "grep", "cat", "cut", "df", "head", "mkdir", "mktemp", "rm"),
    *("sha256sum", "tail", "tee", "uname", "dirname", "flock", "env", "printf", "make"),
)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout without anything installed."""
    place = tmp_path / "checkout"
    (place / "deploy").mkdir(parents=True)
    for name in ("Makefile", "package-lock.json", "package.json"):
        shutil.copy(ROOT / name, place)
    for path in ROOT.glob("requirements*.txt"):
        shutil.copy(path, place)
    shutil.copy(ROOT / "deploy" / "setup.sh", place / "deploy")
    return place


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder of programs with everything but Python and npm."""
    place = tmp_path / "bin"
    place.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        if found:
            (place / name).symlink_to(found)
    return place


def fake(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def set_up(checkout: Path, path: Path, mode: str = "run", **more: str):
    return subprocess.run(
        ["sh", "deploy/setup.sh", mode],
        cwd=checkout,
        env={"PATH": str(path), "HOME": str(checkout), **more},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("setup: ")
    return line


def test_help_lists_every_target():
    text = (ROOT / "Makefile").read_text()
    phony = text.partition(".PHONY: ")[2].splitlines()[0].split()
    # The suite itself runs under make, which passes its options on.
    environ = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    done = subprocess.run(
        ["make", "help"],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    listed = [line.split()[1] for line in done.stdout.splitlines()]
    assert sorted(listed) == sorted(phony)
    assert {"run", "test", "check", "bench", "help"} <= set(phony)


def test_no_python_is_one_line(checkout, bare):
    assert "Python 3.11 or newer is needed" in one_line(set_up(checkout, bare))


def test_an_old_python_is_one_line(checkout, bare):
    fake(bare, "python3", 'case "$*" in *version_info*) exit 1;; esac')
    assert "Python 3.11 or newer is needed" in one_line(set_up(checkout, bare))


def test_a_missing_venv_module_is_one_line_that_names_the_package(checkout, bare):
    fake(
        bare,
        "python3",
        'case "$*" in *ensurepip*) exit 1;; *print*) echo 3.12;; esac',
    )
    assert "apt-get install python3.12-venv" in one_line(set_up(checkout, bare))


def test_a_full_disk_is_one_line(checkout, bare):
    fake(bare, "python3", "exit 0")
    (bare / "df").unlink()
    fake(bare, "df", 'echo "Filesystem x x x"; echo "disk 100 90 10240 99% /"')
    assert "the disk is full: 10 MiB free" in one_line(set_up(checkout, bare))


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Temporary failure in name resolution", "no network"),
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("error: command 'gcc' failed: No such file or directory", "no C compiler"),
        ("ERROR: No matching distribution found for amqp==5", "amqp==5"),
        ("ssl.SSLCertVerificationError: certificate verify failed", "PIP_CERT=FILE"),
    ],
)
def test_a_failing_install_is_explained_in_one_line(checkout, bare, said, shown):
    """A venv whose pip fails in some way."""
    (checkout / ".venv" / "bin").mkdir(parents=True)
    fake(
        checkout / ".venv" / "bin",
        "python",
        f'case "$*" in *"pip install"*) echo "{said}"; exit 1;; esac',
    )
    done = set_up(checkout, bare)
    assert shown in one_line(done)
    assert "[2/3] installing Python packages" in done.stdout
    assert said in (checkout / "var" / "log" / "setup.log").read_text()


def test_what_is_installed_is_not_installed_again(checkout, bare):
    (checkout / ".venv" / "bin").mkdir(parents=True)
    fake(
        checkout / ".venv" / "bin",
        "python",
        f'case "$*" in *"pip install"*) echo once >>"{checkout}/calls";; esac',
    )
    fake(bare, "npm", f'mkdir -p node_modules; echo npm >>"{checkout}/calls"')
    first = set_up(checkout, bare)
    assert first.returncode == 0, first.stderr
    assert "[3/3] fetching front-end packages with npm" in first.stdout
    second = set_up(checkout, bare)
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert (checkout / "calls").read_text() == "once\nnpm\n"
    (checkout / "requirements.txt").write_text("other==1\n")
    assert "[2/3]" in set_up(checkout, bare).stdout


@pytest.fixture
def with_venv(checkout, bare):
    """A venv that accepts every package, and an npm that records its arguments."""
    (checkout / ".venv" / "bin").mkdir(parents=True)
    fake(checkout / ".venv" / "bin", "python", "exit 0")
    fake(bare, "npm", f'mkdir -p node_modules; echo "$*" >>"{checkout}/calls"')
    return checkout


def test_a_gpu_node_fetches_no_front_end(with_venv, bare):
    done = set_up(with_venv, bare, "node")
    assert done.returncode == 0, done.stderr
    assert not (with_venv / "calls").exists()


def test_only_developers_get_development_packages(with_venv, bare):
    for mode, calls in (("setup", 1), ("run", 1), ("test", 2), ("setup", 2)):
        done = set_up(with_venv, bare, mode)
        assert done.returncode == 0, done.stderr
        said = (with_venv / "calls").read_text().splitlines()
        assert len(said) == calls, mode
    assert "--omit=dev" in said[0]
    assert "--omit=dev" not in said[1]


def test_a_portal_bundles_its_scripts_and_goes_on_without(with_venv, bare):
    calls = with_venv / "python-calls"
    bundle = "gpuportal/pages/bundle.py"
    assert (ROOT / bundle).is_file()
    fake(
        with_venv / ".venv" / "bin",
        "python",
        f'case "$*" in *{bundle}) echo "$*" >>"{calls}"; exit 1;; esac',
    )
    assert set_up(with_venv, bare, "node").returncode == 0
    assert not calls.exists()
    for mode in ("setup", "run", "test"):
        assert set_up(with_venv, bare, mode).returncode == 0
    assert calls.read_text() == f"-P {bundle}\n" * 3


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("npm error code SELF_SIGNED_CERT_IN_CHAIN", "NODE_EXTRA_CA_CERTS=FILE"),
        ("npm error 404 Not Found - GET /axe-core", "404 Not Found"),
    ],
)
def test_a_failing_npm_is_explained_by_its_cause(with_venv, bare, said, shown):
    log = "npm error A complete log of this run can be found in: /var/log/npm"
    fake(bare, "npm", f'echo "{said}"; echo "{log}"; exit 1')
    line = one_line(set_up(with_venv, bare, "setup"))
    assert shown in line
    assert "complete log" not in line


def test_a_running_portal_is_not_installed_over(checkout, bare):
    run = checkout / "var" / "run"
    run.mkdir(parents=True)
    (run / "portal.lock").write_text("process 7, http://127.0.0.1:8010/")
    holder = subprocess.Popen(
        ["flock", str(run / "portal.lock"), "cat"], stdin=subprocess.PIPE
    )
    try:
        deadline = time.monotonic() + 60
        while (
            subprocess.run(
                ["flock", "-n", str(run / "portal.lock"), "true"], check=False
            ).returncode
            == 0
        ):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        done = set_up(checkout, bare)
        assert "already runs in this checkout (process 7" in one_line(done)
        assert not (checkout / ".venv").exists()
    finally:
        assert holder.stdin is not None
        holder.stdin.close()
        holder.wait(60)


def test_the_script_is_plain_posix_shell():
    for name in (
        *("deploy/setup.sh", "deploy/lock.sh", "deploy/acl.sh", ".ci/run"),
        *(
            "deploy/gpuportal-manage",
            "deploy/certificate",
            "deploy/enroll",
            "deploy/join",
            "deploy/join.sh",
            "deploy/broker-user",
        ),
    ):
        path = ROOT / name
        assert path.read_text().startswith("#!/bin/sh\n")
        subprocess.run(["sh", "-n", str(path)], check=True)
    for name in (".ci/run", "deploy/gpuportal-manage", "deploy/rehearse"):
        assert os.access(ROOT / name, os.X_OK)
