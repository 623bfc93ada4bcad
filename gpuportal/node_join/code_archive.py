"""The portal's own code as an archive for machines that join.

It has what a node runs and nothing else: no settings, no secrets, no pages. The same
files give the same bytes on every host, so all web processes name the same sum.
"""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from telemetry.paths import BASE_DIR

PACKAGES = ("gpuportal", "placement", "telemetry")
FILES = (
    *("LICENSE", "Makefile", "pyproject.toml"),
    *("requirements-web.txt", "requirements.txt"),
)
DEPLOY = "deploy"
_DEPLOY_NAMES = (
    *("acl.sh", "gpuportal-node", "join", "node.env.example", "setup.sh"),
    "systemd/gpuportal-node.service",
)


class CodeArchive(NamedTuple):
    """The archive and its sum."""

    data: bytes
    sha256: str


@lru_cache(maxsize=1)
def code_archive() -> CodeArchive:
    """Return the archive. Made once in each process (half a second)."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in _members(BASE_DIR):
            content = path.read_bytes()
            member = tarfile.TarInfo(path.relative_to(BASE_DIR).as_posix())
            member.size = len(content)
            member.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(member, io.BytesIO(content))
    data = gzip.compress(raw.getvalue(), compresslevel=6, mtime=0)
    return CodeArchive(data, hashlib.sha256(data).hexdigest())


def _members(top: Path) -> Iterator[Path]:
    """Return regular files only: a link could lead to a secret."""
    listed = [top / name for name in FILES]
    listed += [top / DEPLOY / name for name in _DEPLOY_NAMES]
    for package in PACKAGES:
        listed += sorted((top / package).rglob("*.py"))
    for path in listed:
        if path.is_file() and not path.is_symlink():
            yield path
