"""The folders of releases, and the link to the one that runs.

    /opt/gpuportal            a link to the release that runs
    /opt/gpuportal-releases   0.1.0  0.2.0  ...

A portal that was installed as a checkout has a folder in place of the link. It becomes
the first release. Two names are exchanged in one step, so the path always leads
somewhere.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

LEFT_OUT = (".git", ".venv", "node_modules", "var", ".bundle", "dist", "__pycache__")
"""Not part of a release: made on each machine."""
PREVIOUS = ".previous"
"""Link to the release that ran before."""
_AT_FDCWD, _EXCHANGE = -100, 2


class ReleaseUnusable(Exception):
    """The given files are not a release of the portal."""


class ReleaseFolders:
    """The releases of one machine."""

    def __init__(self, link: Path, folder: Path) -> None:
        """Prepare.

        Args:
            link: the path that units and commands name.
            folder: where releases are.
        """
        self.link, self.folder = link, folder

    @property
    def current(self) -> Path:
        """The folder of the release that runs.

        Raises:
            ReleaseUnusable: nothing is installed.
        """
        found = self.link.resolve()
        if not (found / "manage.py").is_file():
            raise ReleaseUnusable(f"no portal is installed in {self.link}")
        return found

    @property
    def previous(self) -> Path | None:
        """The release that ran before; None if it is not there any more."""
        found = (self.folder / PREVIOUS).resolve()
        return found if (found / "manage.py").is_file() else None

    def others(self) -> list[Path]:
        """Return the releases that neither run nor ran before."""
        kept = {self.current, self.previous}
        return [
            path
            for path in sorted(self.folder.iterdir())
            if path.is_dir() and not path.name.startswith(".") and path not in kept
        ]

    def place(self, source: Path) -> Path:
        """Copy a release into its own folder, once. Return the folder.

        Args:
            source: an archive of a release (``.tar.gz``), a checkout, whose last commit
                is taken, or an unpacked release.

        Raises:
            ReleaseUnusable: it is none of them, or a file of it leads outside.
        """
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        if source.resolve().parent == self.folder.resolve() and source.is_dir():
            return source.resolve()
        draft = self.folder / f".draft-{os.getpid()}"
        shutil.rmtree(draft, ignore_errors=True)
        try:
            tail = _unpack(source, draft)
            placed = self.folder / f"{release_of(draft)}{tail}"
            if placed.exists():
                if tail or _same_files(draft, placed):
                    return placed
                raise ReleaseUnusable(
                    f"{placed} is there, with other files. Move it away first"
                )
            _refuse_links_outside(draft)
            # Units run as another user. Only root changes what they run.
            subprocess.run(["chmod", "-R", "go-w,a+rX", draft], check=True)
            draft.chmod(0o755)
            draft.rename(placed)
            return placed
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def adopt(self) -> None:
        """Make the installed folder a release, and put a link in its place.

        Raises:
            ReleaseUnusable: the file system cannot exchange two names.
        """
        draft = self.link.with_name(f".{self.link.name}.link")
        if self.link.is_symlink():
            self._adopt_the_rest(draft)
            return
        self.folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        for path in self.folder.iterdir():
            # Left by an upgrade that was killed before the exchange.
            if path.is_symlink() and path.readlink() == draft:
                path.unlink()
        name = release_of(self.link)
        home = self.folder / name
        number = 1
        while os.path.lexists(home):
            number += 1
            home = self.folder / f"{name}-installed-{number}"
        draft.unlink(missing_ok=True)
        home.symlink_to(draft)
        draft.symlink_to(home)
        # The path leads to the folder in one step: the link, `home`, the folder.
        _exchange(draft, self.link)
        _exchange(draft, home)
        draft.unlink()

    def _adopt_the_rest(self, draft: Path) -> None:
        """End what was killed between the two exchanges, or after them."""
        if draft.is_symlink():
            draft.unlink()
        elif draft.is_dir():
            home = self.link.readlink()
            if home.is_symlink() and home.readlink() == draft:
                _exchange(draft, home)
                draft.unlink()

    def flip(self, release: Path, *, previous: Path | None) -> None:
        """Let the link lead to a release, in one step.

        Args:
            previous: the release to return to; None: no such release.
        """
        if previous is None:
            (self.folder / PREVIOUS).unlink(missing_ok=True)
        else:
            _point(self.folder / PREVIOUS, previous)
        _point(self.link, release)


def release_of(folder: Path) -> str:
    """Return the version of a release's folder.

    Raises:
        ReleaseUnusable: it is not one.
    """
    try:
        project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        name, version = project["name"], str(project["version"])
    except (OSError, KeyError, ValueError) as error:
        raise ReleaseUnusable(f"{folder} is not a release of the portal") from error
    known = name == "gpuportal" and (folder / "manage.py").is_file()
    if not known or not re.fullmatch(r"[0-9][A-Za-z0-9.+-]{0,38}", version):
        raise ReleaseUnusable(f"{folder} is not a release of the portal")
    return version


def _unpack(source: Path, draft: Path) -> str:
    """Fill a draft. Return what follows the version in its name, for a checkout."""
    if source.is_file():
        _unpack_archive(source, draft)
        return ""
    if not source.is_dir():
        raise ReleaseUnusable(f"there is no {source}")
    release_of(source)
    if not (source / ".git").exists():
        ignored = shutil.ignore_patterns(*LEFT_OUT)
        shutil.copytree(source, draft, symlinks=True, ignore=ignored)
        return ""
    commit = _git(source, "rev-parse", "--short=10", "HEAD").decode().strip()
    draft.mkdir()
    archive = _git(source, "archive", "--format=tar", "HEAD")
    subprocess.run(["tar", "-x", "-C", draft], input=archive, check=True)
    return f"-g{commit}"


def _unpack_archive(source: Path, draft: Path) -> None:
    draft.mkdir()
    # tar refuses names that lead outside of the folder.
    done = subprocess.run(
        [*("tar", "-xf", source, "-C", draft), "--no-same-owner"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        why = " ".join(done.stderr.split("\n")[0].split())
        raise ReleaseUnusable(f"{source} is not an archive of a release: {why}")
    # An archive has one folder with everything in it.
    inside = list(draft.iterdir())
    if len(inside) == 1 and inside[0].is_dir():
        moved = draft.with_name(f"{draft.name}-in")
        inside[0].rename(moved)
        draft.rmdir()
        moved.rename(draft)


def _git(source: Path, *words: str) -> bytes:
    try:
        done = subprocess.run(
            ["git", "-C", source, *words], capture_output=True, check=True
        )
    except FileNotFoundError as error:
        raise ReleaseUnusable("git is needed for a checkout, and not here") from error
    except subprocess.CalledProcessError as error:
        why = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ReleaseUnusable(f"git: {' '.join(why)}") from error
    return done.stdout


def _refuse_links_outside(draft: Path) -> None:
    """Refuse a link that leads out of a release.

    Raises:
        ReleaseUnusable: there is one.
    """
    top = draft.resolve()
    for path in draft.rglob("*"):
        if not path.is_symlink():
            continue
        # The draft gets another name, so a link must not name it.
        leads = Path(os.path.realpath(path))
        if path.readlink().is_absolute() or not leads.is_relative_to(top):
            inside = path.relative_to(draft)
            raise ReleaseUnusable(f"{inside} is a link that leads outside")


def _same_files(draft: Path, placed: Path) -> bool:
    """Return whether a placed release has every file of a draft, unchanged."""
    return all(
        (placed / path.relative_to(draft)).is_file()
        and (placed / path.relative_to(draft)).read_bytes() == path.read_bytes()
        for path in draft.rglob("*")
        if path.is_file()
    )


def _point(link: Path, target: Path) -> None:
    draft = link.with_name(f".{link.name}.new")
    draft.unlink(missing_ok=True)
    draft.symlink_to(target)
    draft.replace(link)


def _exchange(one: Path, other: Path) -> None:
    """Exchange two names in one step. renameat2(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.renameat2(
        _AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _EXCHANGE
    )
    if failed:
        why = os.strerror(ctypes.get_errno())
        raise ReleaseUnusable(f"{one} and {other} cannot be exchanged: {why}")
