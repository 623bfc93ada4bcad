"""Folders of people without a home on the node: their home, and their environments.

    <NODE_DIR>/homes/PERSON         $HOME of their Jobs
    <NODE_DIR>/homes/PERSON.lock    each of their Jobs holds a shared lock
    <NODE_DIR>/environments/PERSON  environments that the node builds for them

So the caches of Hugging Face, pip and torch last from one Job to the next. A home is a
cache and no store: it is removed when no Job used it for a week, and before a Job if it
takes more than half of what the Job may hold and no other Job of the person runs.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from placement.agent.process.unix_user import UnixIdentity
from placement.agent.storage import folder_tree
from placement.agent.storage.folder_size import FoldersTooDeep, size_bytes
from placement.protocol.commands import Order

HOMES = "homes"
ENVIRONMENTS = "environments"
LOCK_SUFFIX = ".lock"
FULL_SHARE = 0.5
"""The part of a Job's limit that a home may take before the Job starts."""

logger = logging.getLogger(__name__)


def person_folder(
    node_dir: Path, kind: str, order: Order, identity: UnixIdentity | None
) -> Path:
    """Return the folder of an order's owner, which is made if it is missing.

    Args:
        kind: HOMES or ENVIRONMENTS.

    Raises:
        OSError: it cannot be made.
    """
    own = _people(node_dir, kind) / _name(order, identity)
    with contextlib.suppress(FileExistsError):
        folder_tree.close_all(folder_tree.make_owned(own, identity))
    return own


@contextlib.contextmanager
def held_home(
    node_dir: Path, order: Order, identity: UnixIdentity | None
) -> Iterator[Path | None]:
    """Keep the home of an order's owner for as long as the Job runs.

    Yields:
        The home, which is made if it is missing. None: the owner has one on the node,
        or the order names no person, or Slurm runs the Job, perhaps on another node.

    Raises:
        OSError: it cannot be made.
    """
    has_home = identity is not None and identity.has_home
    if has_home or order.slurm is not None or not order.user:
        yield None
        return
    people, name = _people(node_dir, HOMES), _name(order, identity)
    with _opened(people / f"{name}{LOCK_SUFFIX}") as lock:
        most = order.limits.disk_bytes * FULL_SHARE
        if most and _size_bytes(people / name) > most and _is_only_user(lock):
            folder_tree.remove(people / name)
        fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(lock)
        yield person_folder(node_dir, HOMES, order, identity)


def remove_unused(node_dir: Path, before: float) -> int:
    """Remove the homes that no Job has used since ``before``. Return how many.

    Args:
        before: Unix time in seconds.
    """
    done = 0
    for path in (node_dir / HOMES).glob(f"*{LOCK_SUFFIX}"):
        try:
            with _opened(path) as lock:
                if os.fstat(lock).st_mtime < before and _is_only_user(lock):
                    # The lock stays: a Job may wait for it.
                    done += path.with_suffix("").exists()
                    folder_tree.remove(path.with_suffix(""))
        except OSError as error:
            logger.error("home %s is not removed: %s", path.stem, error)
    return done


def _people(node_dir: Path, kind: str) -> Path:
    """Return the folder of a kind. People may pass through it, not list it."""
    people = node_dir / kind
    with contextlib.suppress(FileExistsError):
        people.mkdir(0o711)
        people.chmod(0o711)  # whatever the umask says
    return people


def _name(order: Order, identity: UnixIdentity | None) -> str:
    """Return an id rather than a login: files stay with the user who owns them."""
    if identity is not None:
        return f"uid-{identity.uid}"
    return hashlib.sha256(order.user.encode()).hexdigest()[:24]


def _size_bytes(home: Path) -> int:
    try:
        return size_bytes(home)
    except FoldersTooDeep:
        return 2**63


def _is_only_user(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open the lock of a home, which is made if it is missing."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(path, flags, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)
