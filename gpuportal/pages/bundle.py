"""The scripts of pages in few files, made by esbuild of ``static/js``.

``deploy/setup.sh`` runs this file as a program, without Django. A bundle lies in a
folder that is named after the content of its sources. The bundle of sources that have
changed since has another name, and is never served.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "static" / "js"
FOLDER = ROOT / ".bundle"
INDEX = "index.json"
EVERYWHERE = "portal.js"
"""The script of all pages. Every other script of a page imports it first, so that
esbuild puts all its imports into one file that the pages share."""
KEPT = 2
"""How many bundles stay: a page that is open may need the one before."""
LOOK_SECONDS = 1.0
"""How long a process trusts its last look at the sources. A look reads the size and
time of every script, which takes 2 ms."""
# Catalogues, and the administration's theme, are no modules and served as they are.
_NO_MODULES = ("words/", "shell/admin-theme.js")
_IMPORT = re.compile(r"""(?:from|import)\s*\(?\s*["'](\.[^"']+)["']""")
# A change of these files changes the bundle, even if the sources are the same.
_RECIPE = (str(Path(__file__).resolve()), str(ROOT / "package-lock.json"))
# Pages find img/icons.svg beside the folder of their script: all files lie in one.
_OPTIONS = (
    *("--bundle", "--splitting", "--format=esm", "--target=esnext", "--minify"),
    *("--charset=utf8", "--sourcemap", "--log-level=warning", "--color=false"),
    *("--entry-names=[name]-[hash]", "--chunk-names=shared-[hash]"),
)


class NotMade(Exception):
    """There is no bundle; says why. Pages load the sources."""


def current() -> dict[str, str]:
    """Return the file of each page's script (``js/board/board.js``).

    It is {} if the sources have no bundle. A change of the sources, or a bundle that
    another process made, is noticed after at most ``LOOK_SECONDS``.
    """
    return _made_at(time.monotonic() // LOOK_SECONDS)


@lru_cache(maxsize=1)
def _made_at(_look: float) -> dict[str, str]:
    """Return the files of pages. `_look` numbers the times of looking."""
    try:
        found: dict[str, str] = json.loads((folder() / INDEX).read_text())
    except FileNotFoundError:
        return {}
    return found


def folder() -> Path:
    """Return where the bundle of the present sources is, or would be."""
    paths = [
        f"{under}/{name}"
        for under, _, names in os.walk(SOURCES)
        for name in names
        if name.endswith(".js")
    ]
    stats = ((path, Path(path).stat()) for path in (*sorted(paths), *_RECIPE))
    return FOLDER / _sum(tuple((p, s.st_size, s.st_mtime_ns) for p, s in stats))


def make() -> bool:
    """Make the bundle if it is missing. Return whether it was.

    Raises:
        NotMade: esbuild is not installed, or it refused a script.
    """
    if folder().is_dir():
        return False
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = folder()
        if made.is_dir():
            return False
        work = FOLDER / "work"
        shutil.rmtree(work, ignore_errors=True)
        _build(work)
        if folder() != made:
            raise NotMade("the scripts changed meanwhile")
        work.rename(made)
        _made_at.cache_clear()
        _remove_old()
    return True


@lru_cache(maxsize=2)
def _sum(stats: tuple[tuple[str, int, int], ...]) -> str:
    """Return the sum of files. Their sizes and times only say whether to read them."""
    found = hashlib.sha256()
    for path, _, _ in stats:
        content = Path(path).read_bytes()
        found.update(f"{os.path.relpath(path, ROOT)} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()[:16]


def _entries() -> list[str]:
    """Return the modules that no other module imports, without ``EVERYWHERE``."""
    modules = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.js")}
    imported = {
        os.path.normpath(Path(name).parent / target)
        for name in modules
        for target in _IMPORT.findall((SOURCES / name).read_text())
    }
    own = modules - imported - {EVERYWHERE}
    return sorted(name for name in own if not name.startswith(_NO_MODULES))


def _build(work: Path) -> None:
    """Make all files in ``work``, which lies as deep as the bundle."""
    program = next(ROOT.glob("node_modules/@esbuild/*/bin/esbuild"), None)
    if program is None:
        raise NotMade("there is no esbuild for this machine")
    starts = work / "starts"
    starts.mkdir(parents=True)
    names = {}
    for name in (EVERYWHERE, *_entries()):
        start = name.replace("/", "-")
        names[f"starts/{start}"] = f"js/{name}"
        modules = dict.fromkeys((EVERYWHERE, name))
        (starts / start).write_text(_imports(modules, starts))
    try:
        done = subprocess.run(
            [str(program), *_OPTIONS, "--outdir=.", "--metafile=meta.json", *names],
            cwd=work,
            capture_output=True,
            text=True,
        )
    except OSError as error:
        raise NotMade(f"esbuild does not start: {error.strerror}") from error
    if done.returncode:
        raise NotMade(done.stderr.strip().partition("\n")[0])
    meta = work / "meta.json"
    outputs = json.loads(meta.read_text())["outputs"]
    index = {
        names[one["entryPoint"]]: made
        for made, one in outputs.items()
        if one.get("entryPoint") in names
    }
    (work / INDEX).write_text(json.dumps(index, indent=1, sort_keys=True))
    meta.unlink()
    shutil.rmtree(starts)


def _imports(modules: Iterable[str], start: Path) -> str:
    sources = os.path.relpath(SOURCES, start)
    return "".join(f'import "{sources}/{name}";\n' for name in modules)


def _remove_old() -> None:
    made = [path for path in FOLDER.iterdir() if path.is_dir()]
    for old in sorted(made, key=lambda path: path.stat().st_mtime)[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)


if __name__ == "__main__":
    try:
        if make():
            print(f"      bundled the scripts of {len(current())} pages")
    except (NotMade, OSError) as error:
        print(f"      pages load their scripts one by one: {error}", file=sys.stderr)
