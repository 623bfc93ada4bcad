"""Keep the files that this node's ssh server reads to accept certificates.

In the folder ``ssh`` of the node's own folder, which belongs to root:

    ca.pub               the portal's authority (TrustedUserCAKeys)
    principals/USER      principals that open the account (AuthorizedPrincipalsFile)
    host-cert.pub        certificate of the host key (HostCertificate)

The list comes from the portal every few seconds, and before each connection that the
portal opens. It is signed. While the portal is away the files stay: a certificate ends
by its own time.
"""

from __future__ import annotations

import logging
import os
import pwd
import secrets
import threading
import time
from pathlib import Path

from placement.agent.job_folder import NodeView
from placement.agent.portal_channel import ChannelDown, ChannelRefused, request
from placement.protocol import signing
from placement.protocol.commands import check_order
from placement.protocol.node_refusals import OrderRefused
from placement.protocol.process_commands import LOWEST_UID, NOBODY_UID
from placement.protocol.ssh_access import (
    ACCOUNT_NAME,
    ADDRESS,
    SshAccess,
    SshAnswer,
    parse_ssh_access,
)
from telemetry.protocol.codec import Malformed, decode

FOLDER = "ssh"
AUTHORITY = "ca.pub"
PRINCIPALS = "principals"
HOST_CERTIFICATE = "host-cert.pub"
HOST_KEY = Path("/etc/ssh/ssh_host_ed25519_key.pub")
LOOK_SECONDS = 5.0
RENEW_SECONDS = 180 * 86_400.0
"""Age at which the certificate of the host key is renewed: a quarter of its life."""

logger = logging.getLogger(__name__)
_lock = threading.Lock()
_fetched: dict[Path, tuple[float, float]] = {}
"""By node folder: when the last fetch began (monotonic), and the date of its list."""


def run(node: NodeView, stop: threading.Event) -> None:
    """Refresh the files until `stop`. A node that offers no ssh has none."""
    while node.sshd_port and not stop.is_set():
        refresh(node)
        stop.wait(LOOK_SECONDS)


def refresh(node: NodeView) -> bool:
    """Fetch the list and write the files. False: they stay as they were.

    Several callers share one fetch that began after they called.
    """
    called = time.monotonic()
    with _lock:
        if _fetched.get(node.node_dir, (0.0, 0.0))[0] > called:
            return True
        try:
            _refresh(node)
        except (ChannelDown, ChannelRefused) as error:
            logger.info("the list for ssh was not fetched: %s", error)
        except (OrderRefused, Malformed, OSError, ValueError) as error:
            logger.error("the list for ssh cannot be used: %s", error)
        else:
            return True
    return False


def _refresh(node: NodeView) -> None:
    began = time.monotonic()
    folder = node.node_dir / FOLDER
    (folder / PRINCIPALS).mkdir(mode=0o755, parents=True, exist_ok=True)
    _, body = request(
        "POST",
        node.web_url + ADDRESS,
        node=node.name,
        token=node.token(),
        body=_host_key(folder),
    )
    answer = decode(SshAnswer, body)
    signing.verify(answer.payload, answer.signature, node.order_key_pem().decode())
    access = parse_ssh_access(answer.payload)
    check_order(access, node=node.name, now=time.time())
    if access.issued_at < _fetched.get(node.node_dir, (0.0, 0.0))[1]:
        raise OrderRefused("replayed", "a newer list is known")
    _write_all(folder, access)
    if answer.host_certificate:
        _write(folder / HOST_CERTIFICATE, answer.host_certificate)
    _fetched[node.node_dir] = began, access.issued_at


def _host_key(folder: Path) -> bytes:
    """Return the public host key if it needs a certificate."""
    try:
        age_seconds = time.time() - (folder / HOST_CERTIFICATE).stat().st_mtime
    except OSError:
        age_seconds = RENEW_SECONDS
    if age_seconds < RENEW_SECONDS:
        return b""
    try:
        return HOST_KEY.read_bytes()
    except OSError:
        return b""


def _write_all(folder: Path, access: SshAccess) -> None:
    if _write(folder / AUTHORITY, access.authority):
        # The certificate of the host key is of the previous authority.
        (folder / HOST_CERTIFICATE).unlink(missing_ok=True)
    wanted = {
        one.name: "\n".join(one.principals)
        for one in access.accounts
        if is_ordinary(one.name)
    }
    known = folder / PRINCIPALS
    for name in {path.name for path in known.iterdir()} - wanted.keys():
        (known / name).unlink()
    for name, text in wanted.items():
        _write(known / name, text)


def is_ordinary(name: str) -> bool:
    """Return whether an account exists here and is no account of the system."""
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        return False
    return uid >= LOWEST_UID and uid != NOBODY_UID


def _write(path: Path, text: str) -> bool:
    """Write a line or several, completely. False: the file holds them already."""
    data = text.encode() + b"\n"
    try:
        if path.read_bytes() == data:
            return False
    except FileNotFoundError:
        pass
    draft = path.parent / f".{secrets.token_hex(8)}"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            # sshd reads it as the user, whatever the worker's umask is.
            os.fchmod(file.fileno(), 0o644)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return True


def is_listed(node: NodeView, account: str, holder: str) -> bool:
    """Return whether an account has a principal that begins with ``holder``.

    Args:
        node: whose files are read.
        account: name on the node; "": the portal knows none.
        holder: reservation and user, such as ``r17-u5-``.
    """
    if not ACCOUNT_NAME.fullmatch(account) or not holder:
        return False
    try:
        text = (node.node_dir / FOLDER / PRINCIPALS / account).read_text()
    except (OSError, ValueError):
        return False
    return any(line.startswith(holder) for line in text.splitlines())
