"""``deploy/upgrade``: one command from a release's files to the portal that runs it.

    prepare -> check -> backup -> migrate -> flip -> restart -> self-test
                                               |________ otherwise flip back

The new release is made ready beside the old one. Migrations only add, so the old
release runs on until the link leads to the new one. If a service does not start or the
self-test fails, the link leads back, and the old release runs again. If a migration
removed what the old release needs, the new release stays.

It runs as root and needs the standard library only. Everything that reads the portal's
database is done by the releases' own ``gpuportal-manage``, as the portal's user.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from gpuportal.supervisor.kernel import AlreadyRunning, take_lock
from gpuportal.upgrade.release_folders import ReleaseFolders, ReleaseUnusable
from gpuportal.upgrade.service_manager import (
    WEB,
    WORKERS,
    ServiceFailed,
    ServiceManager,
    Systemd,
)

DONE, DECIDE, UNUSABLE = 0, 1, 2
"""Exit statuses: done, an admin has to decide or the old release runs on, bad input."""
TOP = Path(__file__).resolve().parents[2]
"""The release whose code this is."""
LINK, RELEASES = Path("/opt/gpuportal"), Path("/opt/gpuportal-releases")
BACKUPS = Path("/var/backups/gpuportal")
LOCK_SECONDS = 10
"""A migration that waits longer for a table gives up, so that pages do not wait for
it."""
SETUP_SECONDS = 2 * 3600.0
BACKUP_SECONDS = 6 * 3600.0
COMMAND_SECONDS = 1800.0
"""How long other commands may take. Only a migration has all the time that it needs."""
END_SECONDS = 60.0
"""How long a command may take to end after SIGTERM."""
INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM)
TRIES = 3
PAUSE_SECONDS = 5.0
BACKUP_COMMAND = Path("gpuportal/management/commands/backup.py")
OPTIONAL_LISTS = (
    *("requirements-ldap.txt", "requirements-saml.txt"),
    "requirements-otel.txt",
)
"""Further packages that a portal may have, beside the list of its set-up."""


class StepFailed(Exception):
    """A step did not work. The message is one line."""


FAILURES = (StepFailed, ServiceFailed, ReleaseUnusable, OSError, LookupError)


@dataclass
class UpgradeOptions:
    """The options of an upgrade."""

    check: bool = False
    prepare: bool = False
    accept: bool = False
    backup: bool = True
    backups: Path = BACKUPS
    key: str = ""
    """Public key that the secrets of the backup are sealed for."""
    web: str = "http://127.0.0.1:8010"
    requirements: str = ""


@dataclass(frozen=True)
class ReleaseChange:
    """A change from one release to another that has begun."""

    old: Path
    new: Path
    before_old: Path | None
    """The release that ran before the old one."""
    back: bool
    """Whether it leads back, so that the database has the old one's migrations."""

    def write(self, file: Path) -> None:
        """Write it, so that it is there as a whole or not at all."""
        draft = file.with_name(f"{file.name}.draft")
        paths = {"old": str(self.old), "new": str(self.new)}
        paths["before_old"] = str(self.before_old or "")
        draft.write_text(json.dumps({**paths, "back": self.back}))
        draft.replace(file)

    @classmethod
    def read(cls, file: Path) -> ReleaseChange | None:
        """Return what was written; None if there is nothing, or not from this code."""
        try:
            found = json.loads(file.read_text())
            old, new = Path(found["old"]), Path(found["new"])
            before = Path(found["before_old"]) if found["before_old"] else None
            return cls(old, new, before, bool(found["back"]))
        except (OSError, ValueError, LookupError, TypeError):
            return None


@dataclass
class UpgradeRun:
    """One upgrade."""

    folders: ReleaseFolders
    services: ServiceManager
    options: UpgradeOptions
    say: Callable[[str], None]
    restarted: list[str] = field(default_factory=list)
    flipped: bool = False
    old: Path = Path()
    """The release that runs before."""
    before_old: Path | None = None
    """The release that ran before that one."""
    migrated_by: Path | None = None
    """The release that has begun to migrate the database."""
    collected: bool = False
    """Whether it began to replace the scripts of the pages."""
    resumed: bool = False
    """Whether it goes on with a change that was killed."""
    not_in_order: list[str] = field(default_factory=list)
    """Parts of the portal that were not in order before."""
    lock: int | None = None
    """Descriptor of the lock. It is held until the last command has ended, too."""

    def upgrade(self, new: Path) -> int:
        """Upgrade to a release in its own folder; return the exit status."""
        began = time.monotonic()
        old = self.old = self.folders.current
        if new == old:
            return self._finish(new)
        self.say(f"preparing {new} ...")
        self._prepare(new, old)
        if self.options.prepare:
            self.say(f"{new} is ready.")
            return DONE
        status = self._check(new, old)
        if self.options.check or status == UNUSABLE:
            return status
        if status and not self.options.accept:
            self.say(
                "upgrade: nothing was changed. Solve the problems above, or accept "
                "them: --accept"
            )
            return status
        self.not_in_order = self._not_in_order(new)
        try:
            self._change(new)
        except FAILURES as error:
            return self._failed(str(error))
        seconds = time.monotonic() - began
        self.say(f"{new.name} runs, after {seconds:.0f} s. Before: {self.old.name}.")
        for folder in self.folders.others():
            self.say(f"{folder} is no longer needed.")
        return DONE

    def _finish(self, new: Path) -> int:
        """Go on after an upgrade that was killed when the link led to its release."""
        if not self._unfinished.exists():
            self.say(f"{new} is the release that runs: there is nothing to do.")
            return DONE
        if self.options.check or self.options.prepare:
            self.say(
                "The last upgrade did not come to its end. It goes on without --check "
                "and --prepare."
            )
            return DECIDE
        self.say("The last upgrade did not come to its end. It goes on.")
        change = self._change_under_way()
        if change is None:
            change = ReleaseChange(self.folders.previous or new, new, None, back=False)
        self.flipped = self.resumed = True
        self.old, self.before_old = change.old, change.before_old
        # It has every migration of the database, and the self-test.
        newest = self.migrated_by = change.old if change.back else change.new
        try:
            self._switch(new, tested_by=newest, back=change.back)
        except FAILURES as error:
            return self._failed(str(error))
        self.say(f"{new.name} runs.")
        return DONE

    @property
    def _unfinished(self) -> Path:
        """A file that is there between the change of the link and the end."""
        return self.folders.folder / ".unfinished"

    def _change_under_way(self) -> ReleaseChange | None:
        """Return the change that was killed before its end."""
        return ReleaseChange.read(self._unfinished)

    def go_back(self) -> int:
        """Return to the release that ran before; return the exit status."""
        new, old = self.folders.current, self.folders.previous
        if change := self._change_under_way():
            # The link may lead to either of the two.
            new, old = change.new, change.old
            if change.back:
                new, old = old, new
            self.resumed, self.flipped = True, self.folders.current == old
        if old is None or old == new:
            raise ReleaseUnusable("there is no release that ran before")
        self.old, self.before_old = new, old
        found = self._manage(new, "upgrade", "--back-to", str(old), check=False)
        self.say(found.stdout.rstrip() or found.stderr.strip())
        if self.options.check or (found.returncode and not self.options.accept):
            return found.returncode
        if not self.resumed:
            self.not_in_order = self._not_in_order(new)
        try:
            self.collected = True
            self._manage(old, "collectstatic", "--noinput", "-v0")
            # The older release may have no such test.
            self._switch(old, tested_by=new, back=True)
        except FAILURES as error:
            return self._failed(str(error))
        self.say(f"{old.name} runs again.")
        return DONE

    # --- before anything changes ----------------------------------------------------

    def _prepare(self, new: Path, old: Path) -> None:
        """Install the packages of the new release, in its own folder."""
        wanted = self.options.requirements or _requirements_of(old)
        environ = os.environ | {"REQUIREMENTS": wanted}
        environ.pop("GPUPORTAL_VAR", None)
        setup = ["sh", str(new / "deploy" / "setup.sh"), "setup"]
        self._run(setup, environ, shown=True)
        have = _packages(old)
        for name in OPTIONAL_LISTS:
            needed = _named(new / name)
            # A list that only the new release has is not installed yet.
            had = _named(old / name) or needed
            if had and had <= have and not needed <= _packages(new):
                pip = [*("-m", "pip", "install", "-q", "--no-input"), "-r", name]
                self._run([_python(new), *pip], environ, cwd=new)

    def _check(self, new: Path, old: Path) -> int:
        # A package that a list of the old release names was dropped on purpose.
        lists = [_named(file) for file in old.glob("requirements*.txt")]
        lost = sorted(_packages(old) - _packages(new) - set().union(*lists))
        words = ["upgrade", "--check", "--installed", str(old)]
        words += ["--web", self.options.web]
        words += [word for name in lost for word in ("--lost", name)]
        found = self._manage(new, *words, check=False)
        self.say(found.stdout.rstrip())
        if found.stderr.strip() and found.returncode:
            self.say(found.stderr.strip().splitlines()[-1])
        return min(found.returncode, UNUSABLE) if found.returncode >= 0 else UNUSABLE

    # --- the upgrade ----------------------------------------------------------------

    def _change(self, new: Path) -> None:
        self.folders.adopt()
        self.old, self.before_old = self.folders.current, self.folders.previous
        change = self._change_under_way()
        if change and change.old == self.old:
            # Killed before the link led to the new one.
            self.before_old = change.before_old
        if self.options.backup:
            if not (self.old / BACKUP_COMMAND).is_file():
                raise StepFailed(
                    f"{self.old.name} has no command for backups: make one yourself, "
                    "and add --no-backup"
                )
            self.say("making a backup, and verifying it ...")
            key = ["--key", self.options.key] if self.options.key else []
            folder = self._backup_folder()
            self._manage(self.old, "backup", str(folder), "--verify", *key)
        # Run the checks that need no new tables before the migration.
        self._manage(new, "check", "--deploy")
        self.say("migrating the database, while the old release runs ...")
        self._migrate(new)
        self.collected = True
        self._manage(new, "collectstatic", "--noinput", "-v0")
        self._manage(new, "check", "--deploy", "--database", "default")
        self._switch(new, tested_by=new)

    def _switch(self, release: Path, *, tested_by: Path, back: bool = False) -> None:
        """Let the services run another release, and test the portal."""
        change = ReleaseChange(self.old, release, self.before_old, back)
        change.write(self._unfinished)
        self._flip(release)
        self._restart(release)
        if WEB not in self.restarted:
            stopped = "The web" if self.restarted else "The portal"
            start = "systemctl start gpuportal.target"
            self.say(f"{stopped} is stopped, so nothing was tested. Start it: {start}")
        else:
            self.say("testing ...")
            self._test(tested_by, release)
        self._unfinished.unlink()

    def _flip(self, release: Path) -> None:
        self.flipped = True
        previous = self.before_old if release == self.old else self.old
        self.folders.flip(release, previous=previous)
        self.say(f"{self.folders.link} leads to {release.name}.")

    def _backup_folder(self) -> Path:
        """Return where backups go, which belongs to the portal's user."""
        folder = self.options.backups
        if not folder.exists() and not os.getuid():
            folder.mkdir(mode=0o700, parents=True)
            shutil.chown(folder, user=os.environ.get("GPUPORTAL_USER", "gpuportal"))
        return folder

    def _migrate(self, new: Path) -> None:
        """Migrate. A table that is in use is waited for some seconds at a time."""
        self.migrated_by = new
        environ = {"PGOPTIONS": f"-c lock_timeout={LOCK_SECONDS}s"}
        for number in range(1, TRIES + 1):
            done = self._manage(
                new, "migrate", "--noinput", "-v0", check=False, environ=environ
            )
            if not done.returncode:
                return
            why = _last_line(done)
            if "lock timeout" not in done.stderr or number == TRIES:
                raise StepFailed(f"migrate: {why}")
            self.say(f"a table is in use; trying again ({why})")
            time.sleep(PAUSE_SECONDS)

    def _restart(self, release: Path) -> None:
        """Let every service that is not stopped run a release."""
        changed = self.services.install_units(release)
        for service in WORKERS:
            if self.services.runs(service) or service in self.restarted:
                self.restarted.append(service)
                self._service(self.services.restart, service)
        if not (self.services.runs(WEB) or WEB in self.restarted):
            return
        # The process that replaces the web's is itself started again only if its unit
        # changed. The port stays open in both cases.
        swap = self.services.restart
        if f"{WEB}.service" not in changed and self.services.runs(WEB):
            swap = self.services.reload
        try:
            self._service(swap, WEB)
        except StepFailed:
            # An upgrade that was killed or that failed may have changed its unit.
            # Then the process does not know the unit's command.
            again = self.resumed or WEB in self.restarted
            if swap == self.services.restart or not again:
                raise
            self._service(self.services.restart, WEB)
        finally:
            self.restarted.append(WEB)

    def _service(self, act: Callable[[str], None], service: str) -> None:
        try:
            act(service)
        except ServiceFailed as error:
            line = self.services.last_lines(service)
            raise StepFailed(f"{error}" + (f" ({line})" if line else "")) from error

    def _not_in_order(self, release: Path) -> list[str]:
        """Return what is not in order before anything changes, such as `disk`."""
        words = ("upgrade", "--not-in-order", "--web", self.options.web)
        found = self._manage(release, *words, check=False)
        return [] if found.returncode else found.stdout.split()

    def _test(self, tested_by: Path, release: Path) -> None:
        words = ["upgrade", "--self-test", "--web", self.options.web]
        words += ["--note", self.old.name, release.name]
        words += [word for part in self.not_in_order for word in ("--before", part)]
        found = self._manage(tested_by, *words, check=False)
        self.say(found.stdout.rstrip())
        if found.returncode:
            bad = [line for line in found.stdout.splitlines() if "problem" in line[:8]]
            why = " ".join(bad[0].split()) if bad else _last_line(found)
            raise StepFailed(f"the self-test: {why}")

    def _failed(self, why: str) -> int:
        """Let the old release run; say why in one line."""
        why, old = " ".join(why.split()).rstrip("."), self.old
        if self.collected and not self.flipped:
            # Its pages name its own scripts.
            self._collect_again(old)
        if lost := self._lost(old):
            self._stay(why, lost)
            return DECIDE
        if not self.flipped:
            self.say(f"upgrade: {why}. {self._running(old, 'still runs')}.")
            return DECIDE
        try:
            self.folders.flip(old, previous=self.before_old)
            self._collect_again(old)
            self._restart(old)
            self._unfinished.unlink(missing_ok=True)
        except FAILURES as error:
            self.say(
                f"upgrade: {why}. Going back to {old.name} failed too: {error}. See "
                f"journalctl -u 'gpuportal-*'"
            )
            return DECIDE
        self.say(f"upgrade: {why}. {self._running(old, 'runs again')}.")
        return DECIDE

    def _collect_again(self, old: Path) -> None:
        """Collect the old release's scripts. If it fails, they are still there."""
        with suppress(*FAILURES):
            self._manage(old, "collectstatic", "--noinput", "-v0", check=False)

    def _lost(self, old: Path) -> str:
        """Return why the old release cannot run on the database; "": it can."""
        if self.migrated_by is None or self.migrated_by == old:
            return ""
        try:
            words = ("upgrade", "--back-to", str(old))
            found = self._manage(self.migrated_by, *words, check=False)
        except FAILURES as error:
            return f"it was not found out ({error})"
        if not found.returncode:
            return ""
        bad = [line for line in found.stdout.splitlines() if "problem" in line[:8]]
        first = " ".join((bad or [_last_line(found)])[0].split()).rstrip(".")
        more = f" ({len(bad) - 1} more, see --back --check)" if len(bad) > 1 else ""
        return first.partition(". Fix: ")[0] + more

    def _stay(self, why: str, lost: str) -> None:
        """Say why there is no way back. What was not restarted yet gets the new code.

        The upgrade counts as unfinished, so that the command goes on the next time.
        """
        if not self.flipped:
            state = "The migration had begun, and"
        else:
            for service in (*WORKERS, WEB):
                with suppress(*FAILURES):
                    if service not in self.restarted and self.services.runs(service):
                        self.services.restart(service)
            state = f"{self.folders.current.name} stays, because"
        self.say(
            f"upgrade: {why}. {state} {self.old.name} may not work with the database: "
            f"{lost}. Repair the cause and repeat the command, or restore the backup "
            "from before the upgrade (docs/operations.md)."
        )

    def _running(self, release: Path, words: str) -> str:
        """Return that a release runs, if it does."""
        with suppress(*FAILURES):
            if any(self.services.runs(one) for one in (WEB, *WORKERS)):
                return f"{release.name} {words}"
        return f"{self.folders.link} leads to {release.name}, and nothing of it runs"

    def _run(
        self,
        words: Sequence[str],
        environ: dict[str, str],
        *,
        cwd: Path | None = None,
        shown: bool = False,
    ) -> None:
        """Run a command of the set-up.

        Raises:
            StepFailed: with the last line that it wrote.
        """
        limit = SETUP_SECONDS
        try:
            done = run_command(
                words, environ, seconds=limit, lock=self.lock, cwd=cwd, shown=shown
            )
        except subprocess.TimeoutExpired as error:
            raise StepFailed(f"{words[0]}: no end in {limit:.0f} s") from error
        if done.returncode:
            raise StepFailed(_last_line(done))

    def _manage(
        self,
        release: Path,
        *words: str,
        check: bool = True,
        environ: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        limits = {"migrate": None, "backup": BACKUP_SECONDS}
        try:
            done = run_command(
                ["sh", str(release / "deploy" / "gpuportal-manage"), *words],
                os.environ | (environ or {}),
                seconds=limits.get(words[0], COMMAND_SECONDS),
                lock=self.lock,
            )
        except subprocess.TimeoutExpired as error:
            raise StepFailed(f"{words[0]}: no end in {error.timeout:.0f} s") from error
        if check and done.returncode:
            raise StepFailed(f"{words[0]}: {_last_line(done)}")
        return done


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1] if lines else f"exit status {done.returncode}"


def run_command(
    words: Sequence[str],
    environ: dict[str, str],
    *,
    seconds: float | None,
    lock: int | None,
    cwd: Path | None = None,
    shown: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run a command, and end it with SIGTERM if this process is interrupted.

    Args:
        seconds: how long it may take; None: as long as it needs.
        lock: a descriptor that it inherits.
        shown: whether its standard output is this process's.

    Raises:
        subprocess.TimeoutExpired: it took longer.
    """
    started: list[subprocess.Popen[str]] = []
    try:
        # An interruption between its start and the wait would leave it.
        with _held_back(INTERRUPTIONS):
            process = subprocess.Popen(
                words,
                cwd=cwd,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=None if shown else subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                pass_fds=() if lock is None else (lock,),
            )
            started.append(process)
        out, err = process.communicate(timeout=seconds)
    except BaseException:
        for process in started:
            # SIGKILL would end runuser and leave what runs under it.
            process.terminate()
            try:
                process.communicate(timeout=END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        raise
    return subprocess.CompletedProcess(words, process.returncode, out or "", err)


@contextmanager
def _held_back(signals: Iterable[signal.Signals]) -> Iterator[None]:
    """Hold signals back until the end. The first one that came is then raised.

    A blocked signal would go to another thread, and interrupt this one all the same.
    """
    came: list[int] = []

    def hold(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    before = {one: signal.signal(one, hold) for one in signals}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, signal.SIG_DFL if handler is None else handler)
        if came:
            signal.raise_signal(came[0])


def _python(release: Path) -> str:
    return str(release / ".venv" / "bin" / "python")


def _requirements_of(release: Path) -> str:
    """Return the list of packages that a release was set up with."""
    torch = any((release / ".venv").glob("lib/python3*/site-packages/torch"))
    return "requirements.txt" if torch else "requirements-web.txt"


def _packages(release: Path) -> set[str]:
    """Return the names of the Python packages of a release."""
    found = (release / ".venv").glob("lib/python3*/site-packages/*.dist-info")
    return {_plain(path.name.rpartition("-")[0].rpartition("-")[0]) for path in found}


def _named(file: Path) -> set[str]:
    """Return the packages that a list pins."""
    lines = [line.partition("==") for line in _lines(file)]
    return {_plain(name.split("[")[0]) for name, pin, _ in lines if pin}


def _plain(name: str) -> str:
    return name.strip().lower().replace("_", "-").replace(".", "-")


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.is_file() else []


def _setting(name: str) -> str:
    """Return a setting of portal.env, which a shell reads."""
    file = os.environ.get("GPUPORTAL_ENV_FILE", "/etc/gpuportal/portal.env")
    done = subprocess.run(
        ["sh", "-c", f'. "$0" && printf %s "${{{name}:-}}"', file],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout if not done.returncode else ""


def main() -> int:
    """Read the arguments, and upgrade."""
    parser = argparse.ArgumentParser(
        prog="upgrade",
        description="Upgrade the portal of this machine while it runs.",
    )
    parser.add_argument(
        "source",
        type=Path,
        nargs="?",
        help="a release's .tar.gz, an unpacked one, or a checkout, whose last commit "
        "is taken (default: where this command is)",
    )
    parser.add_argument("--check", action="store_true", help="say what will happen")
    parser.add_argument(
        "--prepare", action="store_true", help="install the packages, and no more"
    )
    parser.add_argument(
        "--accept", action="store_true", help="upgrade in spite of problems"
    )
    parser.add_argument(
        "--back", action="store_true", help="return to the release that ran before"
    )
    parser.add_argument(
        "--no-backup", action="store_true", help="you have made a backup yourself"
    )
    parser.add_argument("--backups", type=Path, default=BACKUPS, metavar="FOLDER")
    parser.add_argument("--link", type=Path, default=LINK, help=argparse.SUPPRESS)
    parser.add_argument(
        "--releases", type=Path, default=RELEASES, help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--requirements",
        default=os.environ.get("REQUIREMENTS", ""),
        metavar="FILE",
        help="list of packages (default: that of the release that runs)",
    )
    parser.add_argument("--source", type=Path, dest="placed", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.back and (options.prepare or options.source):
        print("upgrade: --back takes no SOURCE and no --prepare", file=sys.stderr)
        return UNUSABLE
    # The portal's user reads what root unpacks.
    os.umask(0o022)
    for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
        # They are for this process, not for the releases' commands.
        os.environ.pop(name, None)
    # A terminal that goes away does not stop an upgrade half-way. Ctrl-C goes back.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for signum in INTERRUPTIONS:
        signal.signal(signum, _interrupted)
    if os.getuid() and options.link == LINK:
        print("upgrade: run it as root", file=sys.stderr)
        return UNUSABLE
    if shutil.which("systemctl") is None:
        print("upgrade: there is no systemd here (docs/operations.md)", file=sys.stderr)
        return UNUSABLE
    run = UpgradeRun(
        ReleaseFolders(options.link, options.releases),
        Systemd(),
        UpgradeOptions(
            check=options.check,
            prepare=options.prepare,
            accept=options.accept,
            backup=not options.no_backup,
            backups=options.backups,
            key=_setting("GPUPORTAL_BACKUP_KEY"),
            requirements=options.requirements,
        ),
        _say,
    )
    if options.placed:
        # Handed over already.
        return run_once(run, options.placed, hand_over=lambda _: None)
    return run_once(run, options.source or TOP, back=options.back)


def _interrupted(signum: int, _frame: object) -> None:
    for other in INTERRUPTIONS:
        signal.signal(other, signal.SIG_IGN)
    raise StepFailed("it was interrupted")


def _say(text: str) -> None:
    """Print, also if the terminal has gone away."""
    with suppress(OSError):
        print(text, flush=True)


def hand_over_to(new: Path) -> None:
    """Let the new release's own ``deploy/upgrade`` do the rest, if this is another one.

    Raises:
        ReleaseUnusable: it is so old that it has none.
    """
    if new == TOP:
        return
    script = new / "deploy" / "upgrade"
    if not script.is_file():
        raise ReleaseUnusable(f"{new} is older than this command")
    # Options as they were given, and in place of the source where it is now.
    words = [*sys.argv[1:], "--source", str(new)]
    os.execv("/bin/sh", ["sh", str(script), *words])


def run_once(
    run: UpgradeRun,
    source: Path,
    *,
    back: bool = False,
    hand_over: Callable[[Path], None] = hand_over_to,
) -> int:
    """Upgrade or go back, unless another upgrade is under way.

    Args:
        hand_over: called with the folder of the new release. It may not return.
    """
    try:
        lock = take_lock(run.folders.folder / ".lock")
    except AlreadyRunning:
        run.say("upgrade: another upgrade is under way.")
        return UNUSABLE
    except OSError as error:
        run.say(f"upgrade: {run.folders.folder}: {error.strerror}.")
        return UNUSABLE
    with lock:
        run.lock = lock.fileno()
        try:
            if back:
                return run.go_back()
            try:
                new = run.folders.place(source)
            except (OSError, subprocess.CalledProcessError, shutil.Error) as error:
                raise ReleaseUnusable(
                    f"{source} cannot be unpacked: {error}"
                ) from error
            hand_over(new)
            return run.upgrade(new)
        except (ReleaseUnusable, StepFailed) as error:
            why = " ".join(str(error).split()).rstrip(".")
            run.say(f"upgrade: {why}. Nothing was changed.")
            return UNUSABLE if isinstance(error, ReleaseUnusable) else DECIDE


if __name__ == "__main__":
    sys.exit(main())
