"""An upgrade with real processes: small releases, a real web, a worker that runs.

The tests have another service manager. deploy/rehearse runs systemd.
"""

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpuportal.supervisor.kernel import AlreadyRunning, take_lock
from gpuportal.supervisor.web_generations import reload_web
from gpuportal.upgrade import release_folders
from gpuportal.upgrade.release_folders import ReleaseFolders, ReleaseUnusable
from gpuportal.upgrade.service_manager import WEB, ServiceFailed, Systemd
from gpuportal.upgrade.upgrade_run import (
    BACKUP_COMMAND,
    DECIDE,
    DONE,
    UNUSABLE,
    UpgradeOptions,
    UpgradeRun,
    run_command,
    run_once,
)
from tests.gpuportal.running import ROOT
from tests.gpuportal.upgrade.web_releases import Load, Web, write_web
from tests.placement.nodes import until

pytestmark = pytest.mark.pure
SETUP = """
[ ! -e deploy/fail-setup ] || { echo "setup: no network" >&2; exit 1; }
mkdir -p .venv/lib/python3.11/site-packages/django-5.dist-info
"""
MANAGE = """
top=$(dirname "$(dirname "$0")")
echo "$(cat "$top/RELEASE") $*" >>"$TEST_LOG"
fail="$top/deploy/fail-$1$2"
[ "$1" != backup ] || fail="$top/deploy/fail-backup"
[ ! -e "$fail" ] || { cat "$fail" >&2; exit 1; }
case "$1 $2" in
"upgrade --not-in-order") cat "$TEST_LOG.bad" ;;
"upgrade --self-test")
    [ "$(cat "$TEST_WORKER")" = "$7" ] || {
        echo "problem  worker: another release runs." ; exit 1; }
    exec "$TEST_PYTHON" - "$4" "$7" <<'END'
import sys, urllib.request
found = urllib.request.urlopen(sys.argv[1], b"x", timeout=60).read().decode()
print("ok       web:", found)
sys.exit(found != sys.argv[2])
END
esac
"""
UNIT = "[Service]\nExecStart=/opt/gpuportal/web {}\n"


def write_release(folder: Path, version: str) -> Path:
    """Make the files of a small release."""
    write_web(folder, version)
    (folder / "manage.py").touch()
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "gpuportal"\nversion = "{version}"\n'
    )
    (folder / "deploy" / "systemd").mkdir(parents=True)
    command = folder / BACKUP_COMMAND
    command.parent.mkdir(parents=True)
    command.touch()
    (folder / "deploy" / "setup.sh").write_text('cd "$(dirname "$0")/.."\n' + SETUP)
    (folder / "deploy" / "gpuportal-manage").write_text(MANAGE)
    (folder / "deploy" / "systemd" / f"{WEB}.service").write_text(UNIT.format("1"))
    return folder


def pack(folder: Path, file: Path, inside: str = "gpuportal-0.2.0") -> Path:
    """Make the archive of a release."""
    with tarfile.open(file, "w:gz") as archive:
        archive.add(folder, inside)
    return file


class OwnServices:
    """Starts the web and one worker from the link, as units do."""

    def __init__(self, link: Path, state: Path) -> None:
        self.link, self.mark = link, state.with_name("worker")
        self.units: Path | None = link / "deploy" / "systemd"
        self.installed = UNIT.format("1")
        self.worker: subprocess.Popen[bytes] | None = None
        self.stopped: set[str] = set()
        self.web = Web(link, state)
        self.restart("gpuportal-worker")

    def runs(self, service: str) -> bool:
        """Beat, ingest and refine do not run here."""
        return service in {WEB, "gpuportal-worker"} - self.stopped

    def restart(self, service: str) -> None:
        """Start the worker from where the link leads now."""
        if service == WEB:
            return self.reload(service)
        self.end_worker()
        release = self.link.resolve()
        if (release / "deploy" / "fail-worker").exists():
            raise ServiceFailed("gpuportal-worker ended with status 1")
        self.worker = subprocess.Popen(
            ["sh", "-c", 'cat RELEASE >"$0" && exec sleep 3600', str(self.mark)],
            cwd=release,
        )
        wanted = (release / "RELEASE").read_text()
        return until(lambda: self.mark.exists() and self.mark.read_text() == wanted)

    def reload(self, service: str) -> None:
        """Replace the web processes."""
        if why := reload_web(self.web.state):
            raise ServiceFailed(why)

    def changed_units(self, release: Path) -> list[str]:
        """There is one unit."""
        text = (release / "deploy" / "systemd" / f"{WEB}.service").read_text()
        return [] if text == self.installed else [f"{WEB}.service"]

    def install_units(self, release: Path) -> list[str]:
        """Remember the unit."""
        changed = self.changed_units(release)
        self.installed = (release / "deploy/systemd" / f"{WEB}.service").read_text()
        return changed

    def last_lines(self, service: str) -> str:
        """Return what a service wrote last."""
        return f"{service} said so"

    def end_worker(self) -> None:
        """End it, as a restart does."""
        if self.worker is not None:
            self.worker.kill()
            self.worker.wait()

    def close(self) -> None:
        """End all."""
        self.end_worker()
        self.web.close()


class Site:
    """A portal that was installed as a folder, and a new release beside it."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.link, self.log, self.backups = top / "portal", top / "log", top / "B"
        self.backups.mkdir()
        write_release(self.link, "0.1.0")
        self.new = write_release(top / "unpacked", "0.2.0")
        self.services = OwnServices(self.link, top / "state.json")
        self.folders = ReleaseFolders(self.link, top / "releases")
        self.said: list[str] = []
        monkeypatch.setenv("TEST_LOG", str(self.log))
        top.joinpath("log.bad").write_text("disk ticks\n")
        monkeypatch.setenv("TEST_WORKER", str(self.services.mark))
        monkeypatch.setenv("TEST_PYTHON", sys.executable)

    def run(self, source: Path, *, back: bool = False, **options: object) -> int:
        """Upgrade, or go back. Return the exit status."""
        web = f"http://127.0.0.1:{self.services.web.port}"
        chosen = UpgradeOptions(web=web, backups=self.backups, key="K", **options)
        self.said = []
        made = UpgradeRun(self.folders, self.services, chosen, self.said.append)
        return run_once(made, source, back=back, hand_over=lambda _: None)

    def commands(self) -> list[str]:
        """Return the commands of releases so far, and forget them."""
        found = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return found

    def running(self) -> set[str]:
        """Return the releases of the web and of the worker."""
        return {self.services.web.ask(), self.services.mark.read_text()}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(tmp_path, monkeypatch)
    yield made
    made.services.close()


def test_an_installed_folder_is_upgraded_under_load_and_back(site, tmp_path):
    archive = pack(site.new, tmp_path / "gpuportal-0.2.0.tar.gz")
    with Load(site.services.web) as load:
        until(lambda: load.answers["0.1.0"] > 5)
        assert site.run(archive, check=True) == DONE
        assert site.running() == {"0.1.0"}
        assert not site.link.is_symlink()
        assert site.run(archive) == DONE
        until(lambda: load.answers["0.2.0"] > 5)
    assert load.failed == []
    assert set(load.answers) == {"0.1.0", "0.2.0"}
    assert site.running() == {"0.2.0"}
    web = f"--web http://127.0.0.1:{site.services.web.port}"
    checked = f"0.2.0 upgrade --check --installed {site.link} {web}"
    assert site.commands() == [
        checked,
        checked,
        f"0.2.0 upgrade --not-in-order {web}",
        f"0.1.0 backup {site.backups} --verify --key K",
        "0.2.0 check --deploy",
        "0.2.0 migrate --noinput -v0",
        "0.2.0 collectstatic --noinput -v0",
        "0.2.0 check --deploy --database default",
        f"0.2.0 upgrade --self-test {web} --note 0.1.0 0.2.0 "
        "--before disk --before ticks",
    ]
    releases = site.folders.folder
    assert site.link.resolve() == releases / "0.2.0"
    assert site.folders.previous == releases / "0.1.0"
    assert site.said[-1].startswith("0.2.0 runs, after ")
    # A second time there is nothing to do.
    assert site.run(archive) == DONE
    assert "nothing to do" in site.said[-1]

    # What a contract step took away keeps the admin from going back unasked.
    site.commands()
    (releases / "0.2.0/deploy/fail-upgrade--back-to").write_text("drops lab_gpu")
    assert site.run(archive, back=True) == 1
    assert site.running() == {"0.2.0"}
    (releases / "0.2.0/deploy/fail-upgrade--back-to").unlink()
    (releases / "0.2.0/deploy/fail-upgrade--self-test").touch()
    assert site.run(archive, back=True) == DECIDE
    assert site.running() == {"0.2.0"}
    assert site.said[-1].endswith(". 0.2.0 runs again.")
    # After an automatic way back, the release before is the same as before.
    assert site.folders.previous == releases / "0.1.0"
    (releases / "0.2.0/deploy/fail-upgrade--self-test").unlink()


FAULTS = {
    "fail-setup": "setup: no network. Nothing was changed.",
    "fail-upgrade--check": "nothing was changed. Solve the problems above",
    "fail-migrate--noinput": "migrate: no such column. 0.1.0 still runs.",
    "fail-collectstatic--noinput": "collectstatic: no such column. 0.1.0 still runs.",
    "fail-check--deploy": "check: no such column. 0.1.0 still runs.",
    "fail-worker": "gpuportal-worker ended with status 1 (gpuportal-worker said so). "
    "0.1.0 runs again.",
    "RELEASE": "a web process ended with status 3 (gpuportal-web said so). 0.1.0 runs "
    "again.",
    "fail-upgrade--self-test": "the self-test: no such column. 0.1.0 runs again.",
}
"""Files that make a step fail, and the last line that is printed."""


def test_whatever_fails_the_old_release_runs_and_one_line_says_why(site, tmp_path):
    unit = site.new / "deploy" / "systemd" / f"{WEB}.service"
    unit.write_text(UNIT.format("2"))
    with Load(site.services.web) as load:
        for name, line in FAULTS.items():
            fault = site.new / ("RELEASE" if name == "RELEASE" else f"deploy/{name}")
            kept = fault.read_text() if fault.exists() else None
            fault.write_text("broken" if name == "RELEASE" else "no such column")
            shutil.rmtree(site.folders.folder / "0.2.0", ignore_errors=True)
            assert site.run(site.new) == DECIDE, name
            assert line in site.said[-1], name
            assert "\n" not in site.said[-1]
            assert site.running() == {"0.1.0"}, name
            assert site.folders.previous is None, name
            assert site.services.installed == UNIT.format("1")
            if kept is None:
                fault.unlink()
            else:
                fault.write_text(kept)
        fault = site.folders.current / "deploy" / "fail-backup"
        fault.write_text("the disk is full")
        shutil.rmtree(site.folders.folder / "0.2.0")
        assert site.run(site.new) == DECIDE
        assert site.said[-1] == "upgrade: backup: the disk is full. 0.1.0 still runs."
        (site.folders.current / BACKUP_COMMAND).unlink()
        assert site.run(site.new) == DECIDE
        assert "0.1.0 has no command for backups" in site.said[-1]
        assert site.run(site.new, backup=False) == DONE
        assert site.running() == {"0.2.0"}
        assert site.services.installed == UNIT.format("2")
    assert load.failed == []


def test_a_contract_migration_leaves_no_automatic_way_back(site):
    (site.new / "deploy/fail-upgrade--back-to").write_text("drops lab_gpu")
    (site.new / "deploy/fail-collectstatic--noinput").write_text("no room")
    assert site.run(site.new) == DECIDE
    assert site.said[-1].startswith(
        "upgrade: collectstatic: no room. The migration had begun, "
    )
    assert "0.1.0 may not work with the database: drops lab_gpu." in site.said[-1]
    assert site.running() == {"0.1.0"}
    placed = site.folders.folder / "0.2.0" / "deploy"
    (placed / "fail-collectstatic--noinput").unlink()
    (placed / "fail-worker").touch()
    assert site.run(placed.parent) == DECIDE
    assert " 0.2.0 stays, because 0.1.0 may not " in site.said[-1]
    assert "runs again" not in site.said[-1]
    assert "still runs" not in site.said[-1]
    # The web has the new code too, and the command goes on once the cause is repaired.
    assert site.services.web.ask() == "0.2.0"
    (placed / "fail-worker").unlink()
    assert site.run(placed.parent) == DONE
    assert site.running() == {"0.2.0"}


def test_an_upgrade_that_is_killed_half_way_goes_on_the_next_time(site, monkeypatch):
    def killed(_service: str) -> None:
        raise SystemExit("killed")

    with monkeypatch.context() as patch:
        patch.setattr(site.services, "reload", killed)
        with pytest.raises(SystemExit):
            site.run(site.new)
    assert site.running() == {"0.1.0", "0.2.0"}
    # What changes nothing that runs does not go on.
    site.commands()
    for choice in ({"check": True}, {"prepare": True}):
        assert site.run(site.new, **choice) == DECIDE
    assert site.run(site.new, back=True, check=True) == DONE
    assert [line for line in site.commands() if "--back-to" not in line] == []
    assert site.running() == {"0.1.0", "0.2.0"}
    assert site.run(site.new) == DONE
    assert site.running() == {"0.2.0"}
    assert site.run(site.new) == DONE
    assert "nothing to do" in site.said[-1]


def test_the_way_back_is_known_wherever_an_upgrade_was_killed(site, monkeypatch):
    def killed(*_args: object, **_named: object) -> None:
        raise SystemExit("killed")

    assert site.run(site.new) == DONE
    third = write_release(site.new.with_name("third"), "0.3.0")
    releases = site.folders.folder
    for stops in ("link", "reload"):
        with monkeypatch.context() as patch:
            if stops == "link":
                module = "gpuportal.upgrade.release_folders"
                patch.setattr(f"{module}._point", killed)
            else:
                patch.setattr(site.services, "reload", killed)
            with pytest.raises(SystemExit):
                site.run(third)
        assert site.run(site.new, back=True) == DONE
        assert site.said[-1] == "0.2.0 runs again."
        assert site.running() == {"0.2.0"}
    # A way back that was killed goes on back, and not forth.
    with monkeypatch.context() as patch:
        patch.setattr(site.services, "reload", killed)
        with pytest.raises(SystemExit):
            site.run(site.new, back=True)
    assert site.folders.current == releases / "0.3.0"
    assert site.run(site.new, back=True) == DONE
    assert site.running() == {"0.3.0"}
    assert site.folders.previous == releases / "0.2.0"


def test_only_what_runs_is_restarted(site):
    site.services.stopped = {WEB}
    assert site.run(site.new) == DONE
    # The web still has the old code here, as it was not started.
    assert site.running() == {"0.1.0", "0.2.0"}
    assert any("The web is stopped, so nothing" in line for line in site.said)
    site.services.stopped = {WEB, "gpuportal-worker"}
    assert site.run(site.new, back=True) == DONE
    assert site.services.mark.read_text() == "0.2.0"
    assert any("The portal is stopped, so nothing" in line for line in site.said)
    (site.folders.folder / "0.2.0/deploy/fail-migrate--noinput").write_text("no")
    assert site.run(site.folders.folder / "0.2.0") == DECIDE
    assert site.said[-1].endswith(" leads to 0.1.0, and nothing of it runs.")


def test_packages_of_a_portal_are_kept_and_dropped_ones_are_no_problem(site):
    site.new.joinpath("requirements-saml.txt").write_text("xmlsec==2\nnew-one==1\n")
    site.link.joinpath("requirements-saml.txt").write_text("xmlsec==1\n")
    site.link.joinpath("requirements.txt").write_text("Dropped_one[x]==1\n")
    packages = site.link / ".venv/lib/python3.11/site-packages"
    for name in ("dropped_one", "xmlsec", "own"):
        (packages / f"{name}-1.0.dist-info").mkdir(parents=True)
    python = site.new / ".venv-python"
    python.write_text('#!/bin/sh\necho "pip $*" >>"$TEST_LOG"\n')
    python.chmod(0o755)
    setup = site.new / "deploy" / "setup.sh"
    keep = "mkdir -p .venv/bin && cp .venv-python .venv/bin/python\n"
    setup.write_text(setup.read_text() + keep)
    assert site.run(site.new, check=True) == DONE
    pip, check = site.commands()
    assert pip == "pip -m pip install -q --no-input -r requirements-saml.txt"
    # The small pip installs nothing, so xmlsec would be lost if no list named it.
    assert f" --installed {site.link} " in check and check.endswith(" --lost own")


def test_a_table_in_use_is_waited_for_a_few_times(site, tmp_path, monkeypatch):
    monkeypatch.setattr("gpuportal.upgrade.upgrade_run.PAUSE_SECONDS", 0.0)
    fault = site.new / "deploy" / "fail-migrate--noinput"
    fault.write_text("canceling statement due to lock timeout")
    assert site.run(site.new) == DECIDE
    assert sum("migrate" in line for line in site.commands()) == 3
    assert site.said[-1].endswith("lock timeout. 0.1.0 still runs.")


def test_the_scripts_of_the_old_release_are_collected_again(site):
    (site.new / "deploy/fail-check--deploy").write_text("no secret")
    assert site.run(site.new) == DECIDE
    # It was found before anything was changed.
    assert [line for line in site.commands() if "migrate" in line] == []
    placed = site.folders.folder / "0.2.0"
    (placed / "deploy/fail-check--deploy").unlink()
    (placed / "deploy/fail-collectstatic--noinput").write_text("no room")
    assert site.run(placed) == DECIDE
    collected = [line[:19] for line in site.commands() if "collectstatic" in line]
    assert collected == ["0.2.0 collectstatic", "0.1.0 collectstatic"]


def test_bad_sources_and_a_second_upgrade_are_refused_in_one_line(site, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(site.new, other)
    (other / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1.0.0"\n')
    text = tmp_path / "text"
    text.write_text("not an archive")
    outside = tmp_path / "outside.tar.gz"
    with tarfile.open(outside, "w:gz") as archive:
        archive.add(site.new / "manage.py", "gpuportal/../../../evil")
    linked = pack(site.new, tmp_path / "linked.tar.gz")
    (site.new / "link").symlink_to("../../etc")
    pack(site.new, linked)
    (site.new / "link").unlink()
    odd = tmp_path / "odd"
    shutil.copytree(site.new, odd)
    os.mkfifo(odd / "pipe")
    for source in (tmp_path / "none", text, other, outside, linked, odd, tmp_path):
        assert site.run(source) == UNUSABLE, source
        assert site.said[-1].startswith("upgrade: ")
        assert site.said[-1].endswith(". Nothing was changed.")
    assert site.run(site.new, back=True) == UNUSABLE
    assert not (tmp_path.parent / "evil").exists()
    assert [*site.folders.folder.glob("[!.]*")] == []

    with take_lock(site.folders.folder / ".lock"):
        assert site.run(site.new) == UNUSABLE
    assert site.said == ["upgrade: another upgrade is under way."]
    (site.new / "manage.py").chmod(0o666)
    (site.new / "deploy").chmod(0o700)
    # The same version with other files is not taken for the one that is there.
    assert site.run(site.new, prepare=True) == DONE
    placed = site.folders.folder / "0.2.0"
    assert (placed / "manage.py").stat().st_mode & 0o777 == 0o644
    assert (placed / "deploy").stat().st_mode & 0o777 == 0o755
    (site.new / "web.py").write_text("")
    assert site.run(site.new, prepare=True) == UNUSABLE
    assert "with other files" in site.said[-1]
    assert site.running() == {"0.1.0"}


def test_what_an_upgrade_began_ends_with_it_or_keeps_its_lock(tmp_path):
    def run(text: str, **options: object) -> str:
        words = ["sh", "-c", text, str(tmp_path / "ended")]
        chosen = {"seconds": None, "lock": None} | options
        return run_command(words, dict(os.environ), **chosen).stdout

    lock = take_lock(tmp_path / "lock")
    left = run("sleep 3600 >/dev/null 2>&1 & echo $!", lock=lock.fileno())
    lock.close()
    with pytest.raises(AlreadyRunning):
        take_lock(tmp_path / "lock")
    os.kill(int(left), signal.SIGKILL)

    def released() -> bool:
        with suppress(AlreadyRunning):
            take_lock(tmp_path / "lock").close()
            return True
        return False

    until(released)

    def interrupted(*_args: object) -> None:
        raise ZeroDivisionError

    before = signal.signal(signal.SIGTERM, interrupted)
    # The kernel may give the signal to any thread.
    rest = threading.Event()
    threading.Thread(target=rest.wait, daemon=True).start()
    try:
        patient = "trap 'echo $$ >\"$0\"; exit' TERM; {}; while :; do sleep 0.05; done"
        with pytest.raises(ZeroDivisionError):
            run(patient.format("kill -TERM $PPID"))
    finally:
        rest.set()
        signal.signal(signal.SIGTERM, before)
    # It was asked to end, and waited for.
    ended = int((tmp_path / "ended").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(ended, 0)
    with pytest.raises(subprocess.TimeoutExpired):
        run("exec sleep 3600", seconds=0.0)


def test_a_checkout_is_taken_by_its_commit(site, tmp_path):
    (site.new / "deploy" / "not-committed").touch()
    for words in (
        ["init", "-q"],
        ["add", "deploy/systemd", "*.py", "*.toml", "RELEASE"],
    ):
        subprocess.run(["git", *words], cwd=site.new, check=True)
    subprocess.run(
        [*("git", "-c", "user.name=a", "-c", "user.email=a@b"), "commit", "-qm", "one"],
        cwd=site.new,
        check=True,
    )
    placed = site.folders.place(site.new)
    assert placed.name.startswith("0.2.0-g")
    assert not (placed / "deploy" / "not-committed").exists()
    assert site.folders.place(site.new) == placed
    assert site.folders.place(placed) == placed


def test_the_path_leads_to_a_release_at_every_moment(tmp_path):
    link = write_release(tmp_path / "portal", "0.1.0")
    folders = ReleaseFolders(link, tmp_path / "releases")
    other = folders.place(write_release(tmp_path / "unpacked", "0.2.0"))
    over, lost = threading.Event(), []

    def look() -> None:
        while not over.is_set():
            try:
                (link / "manage.py").stat()
            except OSError as error:
                lost.append(error)

    watcher = threading.Thread(target=look)
    watcher.start()
    folders.adopt()
    home = folders.current
    assert (link.is_symlink(), home) == (True, tmp_path / "releases" / "0.1.0")
    for _ in range(50):
        folders.flip(other, previous=home)
        folders.flip(home, previous=other)
    over.set()
    watcher.join()
    assert lost == []
    folders.adopt()
    assert folders.previous == other
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("portal", "releases", "unpacked"),
    ]
    link.unlink()
    with pytest.raises(ReleaseUnusable, match="no portal is installed"):
        _ = folders.current


@pytest.mark.parametrize("calls", [0, 1, 2])
def test_a_folder_that_was_adopted_half_way_is_adopted_the_next_time(
    calls, tmp_path, monkeypatch
):
    link = write_release(tmp_path / "portal", "0.1.0")
    folders = ReleaseFolders(link, tmp_path / "releases")
    exchange, left = release_folders._exchange, iter(range(calls))

    def killed(one: Path, other: Path) -> None:
        if next(left, None) is None:
            raise SystemExit("killed")
        exchange(one, other)

    with monkeypatch.context() as patch:
        patch.setattr(release_folders, "_exchange", killed)
        if calls == 2:
            patch.setattr(
                Path, "unlink", lambda path, **named: named or killed(path, path)
            )
        with pytest.raises(SystemExit):
            folders.adopt()
    assert (link / "manage.py").exists()
    folders.adopt()
    assert folders.current == tmp_path / "releases" / "0.1.0"
    assert not folders.current.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["portal", "releases"]


def test_systemd_is_told_what_an_admin_would_type(tmp_path, monkeypatch):
    """Its own behaviour is tried by deploy/rehearse."""
    log, units = tmp_path / "log", tmp_path / "units"
    units.mkdir()
    for name, text in {
        "systemctl": 'echo "$*" >>"$TEST_LOG"\n'
        "case $* in *is-active*web*) echo active ;; "
        '*"restart bad"*) echo "Job for bad failed." >&2; exit 1 ;; esac',
        "journalctl": "echo the last line",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("TEST_LOG", str(log))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    systemd = Systemd(units)
    release = write_release(tmp_path / "release", "0.2.0")
    assert systemd.runs(WEB)
    assert not systemd.runs("gpuportal-refine")
    assert systemd.install_units(release) == [f"{WEB}.service"]
    assert (units / f"{WEB}.service").read_text() == UNIT.format("1")
    assert systemd.install_units(release) == []
    systemd.reload(WEB)
    with pytest.raises(ServiceFailed, match=r"restart bad.service: Job for bad failed"):
        systemd.restart("bad")
    assert systemd.last_lines("bad") == "the last line"
    said = [line.removeprefix("--no-pager ") for line in log.read_text().splitlines()]
    assert said[2:] == [
        *("daemon-reload", f"reload {WEB}.service"),
        *("reset-failed bad.service", "restart bad.service"),
    ]
    units.chmod(0o500)
    (release / "deploy/systemd" / f"{WEB}.service").write_text(UNIT.format("2"))
    if os.getuid():
        with pytest.raises(ServiceFailed, match="Permission denied"):
            systemd.install_units(release)


def test_the_command_of_an_admin_says_in_one_line_what_is_wrong(tmp_path):
    words = ["sh", str(ROOT / "deploy" / "upgrade")]
    environ = {"PATH": f"{tmp_path}:/bin", "PYTHON": sys.executable}
    # It takes its own code, not that of the folder in which it is called.
    (tmp_path / "gpuportal").mkdir()
    (tmp_path / "gpuportal" / "__init__.py").write_text("raise SystemExit(9)")
    shown = subprocess.run(
        [*words, "--help"], env=environ, cwd=tmp_path, capture_output=True
    )
    assert (shown.returncode, b"--back" in shown.stdout) == (0, True)
    for odd in (["--odd"], ["--back", "--prepare"], ["--back", "/tmp"]):
        done = subprocess.run([*words, *odd], env=environ, capture_output=True)
        assert (done.returncode, done.stdout) == (UNUSABLE, b"")
    # systemd is not in this PATH, and only root may upgrade.
    for name in ("sh", "readlink", "dirname"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    environ["PATH"] = str(tmp_path)
    done = subprocess.run(words, env=environ, capture_output=True, text=True)
    assert done.returncode == UNUSABLE
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("upgrade: ")
