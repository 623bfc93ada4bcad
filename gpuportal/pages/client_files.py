"""The students' client as people get it: one file, and a wheel for pipx.

Both are made of ``deploy/client`` when they are first needed, in a folder that is named
after the content of their sources. They have the same bytes on every host.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path

from telemetry.paths import BASE_DIR, var_dir

PROJECT = BASE_DIR / "deploy" / "client"
PACKAGE = PROJECT / "gpuportal_client"
ONE_FILE = "gp.py"
KEPT = 2
"""How many versions stay: a process may still read the one before."""
_START = "from gpuportal_client.command_line import main\n\nraise SystemExit(main())\n"
_HEAD = (
    "#!/usr/bin/env python3\n"
    "# GPU Portal's client {version}. Python runs this file. It is a zip archive, and\n"
    "# unzip shows its source.\n"
)
_DATE = (2026, 1, 1, 0, 0, 0)
_EPOCH = "1767225600"


@lru_cache(maxsize=1)
def version() -> str:
    """Return the version of the client."""
    found = re.search(r'__version__ = "(.+)"', (PACKAGE / "__init__.py").read_text())
    assert found
    return found[1]


def folder() -> Path:
    """Return the folder with the files of the present sources. Make it if needed."""
    made = var_dir() / "client" / _sum()
    if made.is_dir():
        return made
    made.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(dir=made.parent, prefix="draft"))
    try:
        _write_one_file(draft / ONE_FILE)
        _build_wheel(draft)
        draft.chmod(0o755)
        try:
            draft.rename(made)
        except OSError:
            # Another process was faster. Its files have the same bytes.
            if not made.is_dir():
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    _remove_old(made.parent)
    return made


def names() -> list[str]:
    """Return the names of the files. The wheel is missing where flit_core is."""
    return sorted(path.name for path in folder().iterdir())


def wheel_name() -> str:
    """Return the name of the wheel; "" where it could not be made."""
    return next((name for name in names() if name.endswith(".whl")), "")


def _sources() -> list[Path]:
    return sorted(PACKAGE.glob("*.py"))


def _sum() -> str:
    found = hashlib.sha256()
    for path in (Path(__file__), PROJECT / "pyproject.toml", *_sources()):
        content = path.read_bytes()
        found.update(f"{path.name} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()[:16]


def _write_one_file(target: Path) -> None:
    texts = {"__main__.py": _START}
    for path in _sources():
        texts[f"{PACKAGE.name}/{path.name}"] = path.read_text()
    with target.open("wb") as file:
        file.write(_HEAD.format(version=version()).encode())
        # Appended: what unzip and Python skip stands before it.
        with zipfile.ZipFile(file, "a", zipfile.ZIP_DEFLATED) as archive:
            for name, text in texts.items():
                member = zipfile.ZipInfo(name, _DATE)
                member.compress_type = zipfile.ZIP_DEFLATED
                member.external_attr = 0o644 << 16
                archive.writestr(member, text)
    target.chmod(0o755)


def _build_wheel(target: Path) -> None:
    """Build the wheel by the program that pip would use, too."""
    words = [sys.executable, "-m", "flit_core.wheel", "--outdir", str(target)]
    subprocess.run(
        [*words, str(PROJECT)],
        env=os.environ | {"SOURCE_DATE_EPOCH": _EPOCH},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )


def _remove_old(under: Path) -> None:
    made = sorted(under.glob("[0-9a-f]*"), key=lambda path: path.stat().st_mtime)
    for old in made[:-KEPT]:
        shutil.rmtree(old, ignore_errors=True)
