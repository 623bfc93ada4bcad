"""A node proves its key to the portal, and gets a short token for it.

Without Django. A node under ``manage.py portal`` does not do it: it is the portal's own
machine, and keeps the token of its enrolment.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import time
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from placement.agent.job_folder import NodeView
from placement.agent.portal_channel import (
    ChannelDown,
    ChannelRefused,
    TokenRefused,
    request,
)
from placement.protocol.events import ChannelFact, ChannelState
from telemetry.agent.process_owners import boot_id
from telemetry.protocol.node_proof import NodeProof, public_key_of, sealed_proof
from telemetry.protocol.node_token import RENEW_AFTER_SECONDS, token_hash
from telemetry.token_files import TokenFiles

KEY_FILE = "node_key"
"""Beside the token. `deploy/join.sh` makes it when the machine joins."""
NOT_FOUND = 404

logger = logging.getLogger(__name__)


def proves_itself(node: NodeView) -> bool:
    """Return whether a node has short tokens."""
    return node.supervisor_pid is None


def is_due(node: NodeView, now: float) -> bool:
    """Return whether the short token is missing or two thirds of its life are over."""
    files = TokenFiles(node.token_file)
    try:
        missing = files.shown() == files.enrolment
    except OSError:
        return False  # The check of the channel says why.
    age_seconds = files.age_seconds(now)
    return missing or age_seconds is None or age_seconds > RENEW_AFTER_SECONDS


def renew(node: NodeView) -> ChannelFact | None:
    """Prove the key and get the next short token. Return what went wrong; None: it is
    shown from now on, or the portal is of a release without short tokens.

    Cost: two small requests.
    """
    files = TokenFiles(node.token_file)
    try:
        enrolment = files.enrolment.read_text().strip()
        key = machine_key(files.enrolment.with_name(KEY_FILE))
        wanted = files.next(enrolment)
    except (OSError, ValueError) as error:
        return ChannelFact(ChannelState.TOKEN, f"no short token: {error}")
    try:
        challenge = _answer("GET", f"{node.web_url}/node/v1/challenge", node, "")
        proof = NodeProof(
            node=node.name,
            challenge=str(challenge["challenge"]),
            public_key=public_key_of(key),
            enrolment=token_hash(enrolment),
            number=wanted.number - 1,
            next_hash=token_hash(wanted.text),
            boot_id=boot_id()[:40],
            hostname=platform.node()[:120],
        )
        url = f"{node.web_url}/node/v1/token"
        answer = _answer("POST", url, node, enrolment, sealed_proof(proof, key))
        if "number" not in answer:
            return ChannelFact(ChannelState.REFUSED, str(answer.get("detail", answer)))
    except TokenRefused:
        return unknown(node)
    except ChannelRefused as error:
        if error.status == NOT_FOUND:
            files.set_aside()
            return None
        return ChannelFact(ChannelState.REFUSED, f"no short token: {error}")
    except (ChannelDown, ValueError, KeyError, TypeError) as error:
        return ChannelFact(ChannelState.DOWN, str(error))
    try:
        files.accept()
    except OSError as error:
        return ChannelFact(ChannelState.TOKEN, f"no short token: {error}")
    logger.info("the portal accepted token %s of this node", wanted.number)
    return None


def renew_if_due(node: NodeView) -> ChannelFact | None:
    """Renew the short token of a node that has them once it is due."""
    if not proves_itself(node) or not is_due(node, time.time()):
        return None
    return renew(node)


def unknown(node: NodeView) -> ChannelFact:
    """Return that the portal knows no such node or token."""
    why = f"the portal does not know {node.name}, or the token is not its own"
    return ChannelFact(ChannelState.REFUSED, why)


def machine_key(path: Path) -> Ed25519PrivateKey:
    """Return the machine's key. It is made if it is missing.

    Raises:
        OSError: it cannot be read or made.
        ValueError: the file has something else.
    """
    if not path.exists():
        made = Ed25519PrivateKey.generate()
        # A disk that is full must not leave half a key under the name.
        draft = path.with_name(f".{path.name}.part")
        draft.unlink(missing_ok=True)
        handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(
                made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            )
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        return made
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except ValueError as error:
        raise ValueError(f"{path} has no key: delete it, and join again") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{path} has a key of another kind")
    return key


def _answer(
    method: str, url: str, node: NodeView, token: str, body: bytes | None = None
) -> dict[str, object]:
    _, text = request(method, url, node=node.name, token=token, body=body)
    found = json.loads(text)
    if not isinstance(found, dict):
        raise TypeError(f"{url} did not answer with an object")
    return found
