"""The Debian package of a GPU node: built, installed, upgraded, removed, purged.

dpkg and the package's own scripts run, in a scratch folder in place of ``/``.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpuportal.backup.backup_version import portal_version
from gpuportal.node_join.code_archive import DEPLOY, PACKAGES
from tests.house.walk import ROOT

pytestmark = pytest.mark.pure
EPOCH = "1767225600"
SETTINGS = "etc/gpuportal/node.env"
FAKEROOT = [] if os.geteuid() == 0 else ["fakeroot"]
"""dpkg changes owners of files."""


def run(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in words],
        env={"PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"} | more,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def build(*words: object, **more: str) -> subprocess.CompletedProcess[str]:
    environ = {"SOURCE_DATE_EPOCH": EPOCH, "PYTHON": sys.executable} | more
    return run("sh", ROOT / "deploy" / "deb" / "build", *words, **environ)


class Machine:
    """A folder that dpkg takes for the root of a machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        state = root / "var" / "lib" / "dpkg"
        for folder in (state / "info", state / "updates", root / "etc"):
            folder.mkdir(parents=True)
        (state / "status").touch()
        (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        (root / "etc" / "group").write_text("root:x:0:\n")

    def dpkg(self, *words: object, **more: str) -> subprocess.CompletedProcess[str]:
        options = ("--force-script-chrootless", "--force-depends", "--log=/dev/null")
        return run(*FAKEROOT, "dpkg", f"--root={self.root}", *options, *words, **more)

    def state(self) -> str:
        """Return the state of the package, such as ``installed``; "" if it is gone."""
        text = (self.root / "var/lib/dpkg/status").read_text()
        found = re.search(
            r"^Package: gpuportal-node\nStatus: \S+ \S+ (\S+)$", text, re.M
        )
        return found[1] if found else ""

    def users(self) -> list[str]:
        text = (self.root / "etc" / "passwd").read_text()
        return [
            line for line in text.splitlines() if line.startswith("gpuportal-node:")
        ]


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    done = build(tmp_path_factory.mktemp("dist"))
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


def test_the_package_has_what_a_node_runs_and_the_same_bytes_each_time(
    package, tmp_path
):
    assert package.name == f"gpuportal-node_{portal_version()}_all.deb"
    again = Path(build(tmp_path, TZ="Asia/Tokyo").stdout.strip())
    assert again.read_bytes() == package.read_bytes()
    listed = run("dpkg-deb", "--contents", package).stdout
    rows = [line.split(maxsplit=5) for line in listed.splitlines()]
    assert {row[1] for row in rows} == {"root/root"}
    # Nobody but root can change what root runs.
    assert {row[0] for row in rows} == {
        *("drwxr-xr-x", "-rw-r--r--", "-rwxr-xr-x", "-rw-------", "lrwxrwxrwx"),
    }
    modes = {row[5].split(" -> ")[0].removeprefix("./"): row[0] for row in rows}
    assert modes[SETTINGS] == "-rw-------"
    below = {name.split("/")[2] for name in modes if name.startswith("opt/gpuportal/")}
    assert {*PACKAGES, DEPLOY, ".package"} <= below
    assert "reservations" not in below
    assert not [name for name in modes if "__pycache__" in name or "secret_key" in name]
    facts = run("dpkg-deb", "--field", package).stdout
    assert f"\nVersion: {portal_version()}\n" in facts
    assert "python3 (>= 3.11)" in facts
    assert "usr/lib/systemd/system/gpuportal-node.service" in modes
    # Without root, the worker still cannot change whose orders it takes.
    example = (ROOT / "deploy" / "deb" / "unprivileged.conf").read_text()
    assert "chown gpuportal-node" not in example
    assert "chmod 0640" in example


@pytest.mark.parametrize(
    ("words", "more", "said"),
    [
        (("--version", "v 1"), {}, "v 1 is not a valid package version"),
        (("--version", "1-2"), {}, "1-2 is not a valid package version"),
        (("--version",), {}, "usage: build"),
        (("a", "b"), {}, "usage: build"),
        ((), {"SOURCE_DATE_EPOCH": "today"}, "it is seconds since 1970"),
        ((), {"PYTHON": "no-python"}, "no-python is needed and not here"),
        (("/dev/null/dist",), {}, "no permission to write /dev/null/dist"),
    ],
)
def test_what_cannot_be_built_is_refused_in_one_line(words, more, said, tmp_path):
    done = build(*words, **more)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("deb: ")
    assert said in line


def test_settings_outlive_an_upgrade_and_a_removal_and_no_purge(package, tmp_path):
    machine = Machine(tmp_path / "root")
    top = machine.root / "opt" / "gpuportal"
    refused = machine.dpkg("-i", package)
    assert refused.returncode
    assert "set GPUPORTAL_VENV" in refused.stderr
    assert machine.state() == "half-configured"

    # What it would delete, and then link to itself, is not given up.
    own, other = top / ".venv", tmp_path / "other"
    (own / "bin").mkdir(parents=True)
    (own / "bin" / "python").symlink_to(sys.executable)
    other.symlink_to(own)
    for path, said in (
        (own, "own virtual environment"),
        (other, "own virtual environment"),
        (own / "bin" / "..", "own virtual environment"),
        (".venv", "give the path from / on"),
        (tmp_path, "is not a virtual environment"),
    ):
        done = machine.dpkg("--configure", "gpuportal-node", GPUPORTAL_VENV=str(path))
        assert done.returncode, path
        assert said in done.stderr
        assert (own / "bin" / "python").exists()

    given = {"GPUPORTAL_VENV": sys.prefix}
    done = machine.dpkg("--configure", "gpuportal-node", **given)
    assert done.returncode == 0, done.stderr
    assert own.readlink() == Path(sys.prefix)
    (user,) = machine.users()
    assert user.endswith(":/var/lib/gpuportal-node:/usr/sbin/nologin")
    wanted = machine.root / "etc/systemd/system/multi-user.target.wants"
    assert [path.name for path in wanted.iterdir()] == ["gpuportal-node.service"]
    # Its code runs, from its place and with its packages.
    code = "import gpuportal.node_settings as n; print(n.__file__)"
    said = run("sh", "-c", f'cd "$1" && .venv/bin/python -c "{code}"', "sh", top)
    assert said.stdout.strip() == str(top / "gpuportal" / "node_settings.py")

    # The machine joins. Jobs leave files, and Python leaves what it compiled.
    settings = machine.root / SETTINGS
    settings.write_text("GPUPORTAL_NODE=atlas\n")
    (settings.parent / "node.token").write_text("secret")
    work = machine.root / "var/lib/gpuportal-node/jobs"
    work.mkdir(parents=True)
    compiled = top / "gpuportal" / "gone" / "__pycache__"
    compiled.mkdir(parents=True)
    (compiled / "x.pyc").touch()

    newer = build("--version", "99.0", tmp_path)
    done = machine.dpkg("-i", newer.stdout.strip())
    assert done.returncode == 0, done.stderr
    assert (top / ".package").read_text() == "99.0\n"
    assert not compiled.exists()
    assert len(machine.users()) == 1
    assert settings.read_text() == "GPUPORTAL_NODE=atlas\n"

    assert machine.dpkg("--remove", "gpuportal-node").returncode == 0
    assert machine.state() == "config-files"
    assert not (top / ".venv").is_symlink()
    assert not (top / "placement").exists()
    assert settings.read_text() == "GPUPORTAL_NODE=atlas\n"
    # Back again: the same node.
    assert machine.dpkg("-i", package, **given).returncode == 0
    assert settings.read_text() == "GPUPORTAL_NODE=atlas\n"

    done = machine.dpkg("--purge", "gpuportal-node")
    assert done.returncode == 0, done.stderr
    assert machine.state() in ("", "not-installed")
    assert not settings.parent.exists()
    assert not top.exists() or not list(top.rglob("*.py"))
    assert not wanted.is_dir() or not list(wanted.iterdir())
    assert work.is_dir(), "people's files"
    assert "has the files of people's jobs" in done.stdout


@pytest.mark.parametrize("trace", [".git", ".parts"])
def test_code_that_came_another_way_is_not_overwritten(package, tmp_path, trace):
    machine = Machine(tmp_path / "root")
    top = machine.root / "opt" / "gpuportal"
    top.mkdir(parents=True)
    (top / trace).touch()
    done = machine.dpkg("-i", package, GPUPORTAL_VENV=sys.prefix)
    assert done.returncode
    assert "has the code already" in done.stderr
    assert "mv /opt/gpuportal /opt/gpuportal.before" in done.stderr
    assert [path.name for path in top.iterdir()] == [trace]
