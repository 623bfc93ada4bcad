"""Which Unix user a Job runs as, and becoming that user.

Each student's own account, set by the operator, of uid 1000 or more; never a
shared one, never a system account. Where the node worker is not root, or the
student has no account, there is no separate user: then ready recipes only,
unless the operator allows scripts by ``GPUPORTAL_ALLOW_SCRIPTS=1``.

With ``GPUPORTAL_OWN_IDS=1`` (``make run`` as root) a student without an account gets
a user id that no account has: 2^30 plus the CRC-32 of the login, modulo 2^29.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import zlib
from dataclasses import dataclass
from pathlib import Path

from placement.planner.launch.recipes import KNOWN_RECIPES, SERVE
from placement.protocol.commands import JobLimits, Order
from placement.protocol.node_refusals import OrderRefused

LOWEST_UID = 1000
# "nobody" of every distribution: an account that others share.
NOBODY_UID = 65_534
FIRST_OWN_ID = 2**30
"""Above the ids of accounts, containers and systemd (systemd.io/UIDS-GIDS)."""
OWN_IDS = 2**29
OOM_SCORE = Path("/proc/self/oom_score_adj")
JOB_OOM_SCORE = 500
"""Of a Job's processes: half of the node's memory is added to what they have. So if the
memory runs out, the kernel ends them before the node worker and sshd (proc(5)).
"""


@dataclass(frozen=True, slots=True)
class UnixIdentity:
    """A Unix user that Jobs may run as."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: Path

    @property
    def has_home(self) -> bool:
        """Return whether the home is on this node."""
        return self.home.is_dir()


def identity_of(order: Order, *, allow_scripts: bool) -> UnixIdentity | None:
    """Return the Unix user for an order; None: the node worker's own.

    Raises:
        OrderRefused: ``unix_user`` (no such account, not a student's, or
            of another uid) or ``isolation`` (a script, a recipe that runs its owner's
            code, models served by root, or anything in Slurm by root, without a
            separate user).
    """
    root = os.geteuid() == 0
    if root and order.unix_user:
        return _lookup(order.unix_user, order.unix_uid)
    if root and order.slurm is not None and not allow_scripts:
        # An id without an account is unknown to Slurm, and root may use every node.
        raise OrderRefused(
            "isolation",
            f"{order.user or 'the owner'} has no Unix user, and no job in Slurm runs "
            "as root",
        )
    if root and order.user and os.environ.get("GPUPORTAL_OWN_IDS") == "1":
        return own_identity(order.user)
    if (
        order.recipe == SERVE.name
        and root
        and not (allow_scripts or _is_development_run())
    ):
        # Its models may be any user's files, and root must not read them.
        raise OrderRefused(
            "isolation",
            f"{order.user or 'the owner'} has no Unix user on this node, "
            "so no model of theirs is served here",
        )
    recipe = KNOWN_RECIPES.get(order.recipe or "")
    own_code = order.recipe is None or (recipe is not None and recipe.needs_isolation)
    if own_code and not allow_scripts:
        why = (
            f"{order.user or 'the owner'} has no Unix user on this node"
            if os.geteuid() == 0
            else "this node's worker is not root"
        )
        raise OrderRefused(
            "isolation",
            f"{why}, so Jobs are not isolated and only ready recipes run here",
        )
    return None


def own_identity(login: str) -> UnixIdentity:
    """Return the Unix user of a login that has no account: an id and no home."""
    number = FIRST_OWN_ID + zlib.crc32(login.encode()) % OWN_IDS
    return UnixIdentity(
        name=login, uid=number, gid=number, groups=(number,), home=Path("/nonexistent")
    )


def _is_development_run() -> bool:
    """Whether this runs under ``make run``, whose user is the machine's owner."""
    return bool(os.environ.get("GPUPORTAL_SUPERVISOR_PID"))


def _lookup(name: str, uid: int) -> UnixIdentity:
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise OrderRefused("unix-user", f"no Unix user {name} on this node") from error
    if entry.pw_uid < LOWEST_UID or entry.pw_uid == NOBODY_UID:
        raise OrderRefused(
            "unix-user",
            f"Unix user {name} has uid {entry.pw_uid}: Jobs run as uid "
            f"{LOWEST_UID} or more, never as a system account",
        )
    if uid and entry.pw_uid != uid:
        # Under this name it may be the account of another person.
        raise OrderRefused(
            "unix-user",
            f"Unix user {name} has uid {entry.pw_uid} on this node, not {uid} as "
            "the owner's login says",
        )
    return UnixIdentity(
        name=entry.pw_name,
        uid=entry.pw_uid,
        gid=entry.pw_gid,
        groups=tuple(os.getgrouplist(entry.pw_name, entry.pw_gid)),
        home=Path(entry.pw_dir),
    )


def become(identity: UnixIdentity | None) -> None:
    """Give up root for good. Groups first, while that is still allowed."""
    if identity is None:
        return
    os.setgroups(identity.groups)
    os.setresgid(identity.gid, identity.gid, identity.gid)
    os.setresuid(identity.uid, identity.uid, identity.uid)


def limit(limits: JobLimits, identity: UnixIdentity | None) -> None:
    """Set the limits of the calling process and of all that it starts."""
    wanted = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_DATA: limits.memory_bytes,
        resource.RLIMIT_NOFILE: limits.open_files,
        resource.RLIMIT_FSIZE: limits.file_bytes,
    }
    if identity is not None:
        # Counted per Unix user. Without a separate one it would count the node worker
        # too.
        wanted[resource.RLIMIT_NPROC] = limits.processes
    for which, ceiling in wanted.items():
        if ceiling == 0 and which != resource.RLIMIT_CORE:
            continue
        _, hard = resource.getrlimit(which)
        if hard != resource.RLIM_INFINITY:
            ceiling = min(ceiling, hard)
        resource.setrlimit(which, (ceiling, ceiling))
    with contextlib.suppress(OSError, ValueError):
        OOM_SCORE.write_text(str(max(JOB_OOM_SCORE, int(OOM_SCORE.read_text()))))
