"""Make and withdraw join tokens, and let a machine join with one."""

import hashlib
import secrets
from datetime import datetime
from pathlib import Path

from django.conf import settings
from django.db import transaction
from django.db.models import F, QuerySet

from gpuportal.broker import is_unencrypted
from gpuportal.node_join import broker_user
from gpuportal.node_join.join_refusal import JoinFault, JoinRefused
from gpuportal.node_join.rules import LIFE, node_broker_url, token_fault
from placement.protocol import signing
from placement.protocol.join_messages import (
    ANSWER,
    GREETING,
    JoinAnswer,
    JoinRequest,
    TokenParts,
    key_fingerprint,
    pin_of,
    secret_sum,
    sign_lines,
)
from reservations.models import User
from reservations.store.audit_log import audit_act
from telemetry.inventory.enrollment import add_node, replace_token
from telemetry.inventory.node_identity import record_join
from telemetry.models import Node, NodeJoin
from telemetry.protocol.codec import encode, to_plain
from telemetry.protocol.coded_error import FieldsRefused
from telemetry.protocol.errors import NodeExists
from telemetry.protocol.hardware import NODE_NAME
from telemetry.protocol.request_refusal import RequestRefused
from telemetry.protocol.sentences import sentence

PORTAL_CA = Path("/etc/gpuportal/tls/ca.pem")
"""Where ``deploy/certificate`` puts the authority of the portal's certificate."""


@transaction.atomic(durable=True)
def make_token(
    *, name: str, again: bool, actor: User, now: datetime
) -> tuple[NodeJoin, TokenParts]:
    """Make a join token for one node. An open token of the same name is withdrawn.

    Args:
        again: the name is enrolled already, and its machine joins again. The present
            token and password end when it does.

    Raises:
        FieldsRefused: the name is invalid, is enrolled, or is not.
    """
    if not NODE_NAME.fullmatch(name):
        raise FieldsRefused(
            {"name": sentence("Use at most 63 letters, digits, - and _.")}
        )
    # The broker's user would be refused (deploy/acl.sh).
    if name.startswith("_"):
        raise FieldsRefused(
            {"name": sentence("The name begins with a letter or a digit.")}
        )
    node = Node.objects.filter(name=name).first()
    if node is not None and node.engine != Node.Engine.PORTAL:
        raise FieldsRefused(
            {"name": sentence("Slurm gives out the GPUs of this node.")}
        )
    if node is not None and not again:
        raise FieldsRefused(
            {
                "name": sentence(
                    "{node} is enrolled already. To replace its machine or its "
                    "passwords, tick the box below.",
                    node=name,
                )
            }
        )
    if node is None and again:
        raise FieldsRefused(
            {"name": sentence("No node is enrolled under the name {node}.", node=name)}
        )
    for old in _waiting(now).filter(name=name):
        _withdraw(old, actor=actor, now=now)
    token = TokenParts(
        secrets.token_hex(8),
        secrets.token_urlsafe(24),
        pin_of(signing.public_key_pem()),
    )
    row = NodeJoin.objects.create(
        public_id=token.public_id,
        secret_hash=secret_sum(token.secret),
        name=name,
        again=again,
        created_at=now,
        expires_at=now + LIFE,
    )
    audit_act(
        verb="node.join-token-made",
        subject=f"node_join:{row.pk}",
        actor=actor,
        now=now,
        name=name,
        again=again,
    )
    return row, token


@transaction.atomic(durable=True)
def withdraw_token(*, join_id: int, actor: User, now: datetime) -> bool:
    """Withdraw a token that waits. Return whether it still did."""
    row = _waiting(now).filter(pk=join_id).first()
    return row is not None and _withdraw(row, actor=actor, now=now)


def admitted(*, public_id: str, secret: str, now: datetime) -> NodeJoin:
    """Return the join of a token that may be used now. It is not used up.

    Raises:
        JoinRefused: the token is unknown, used, withdrawn or expired.
    """
    row = NodeJoin.objects.filter(public_id=public_id).first()
    # An unknown id takes as long as a wrong secret.
    fault = token_fault(
        state=row.state(now) if row else "waiting",
        stored_sum=row.secret_hash if row else secret_sum(""),
        secret=secret,
        wrong_count=row.wrong_count if row else 0,
    )
    if row is None:
        raise JoinRefused(JoinFault.UNKNOWN)
    if fault is JoinFault.UNKNOWN:
        NodeJoin.objects.filter(pk=row.pk).update(wrong_count=F("wrong_count") + 1)
    if fault is not None:
        raise JoinRefused(fault)
    return row


def bind_key(*, join: NodeJoin, public_key: str) -> None:
    """Bind a token to the key of the first machine that uses it.

    The machine proves that it has the key when it joins.

    Raises:
        JoinRefused: the token is bound to another key.
    """
    free = NodeJoin.objects.filter(pk=join.pk, public_key="")
    if free.update(public_key=public_key):
        return
    if not NodeJoin.objects.filter(pk=join.pk, public_key=public_key).exists():
        raise JoinRefused(JoinFault.OTHER_KEY)


def greeting(*, join: NodeJoin, nonce: str, code_sum: str, now: datetime) -> str:
    """Return what a machine needs before it installs anything, signed."""
    lines = [
        f"nonce {nonce}",
        f"time {int(now.timestamp())}",
        f"node {join.name}",
        f"code {code_sum}",
    ]
    return sign_lines(GREETING, lines, signing.private_key())


def let_join(
    *, join: NodeJoin, request: JoinRequest, address: str, web_url: str, now: datetime
) -> str:
    """Enrol the machine, give it a broker user, and return the signed answer.

    The token is used up. If the broker's user cannot be made, the answer says so, and
    the page shows the command for an operator.

    Raises:
        JoinRefused: the token was used meanwhile or is bound to another key, or the
            name was enrolled.
        RequestRefused: the portal cannot read its certificates. The token is unused.
    """
    ca_pem = _certificates(PORTAL_CA, needed=False)
    broker_ca_pem = ""
    if settings.BROKER_CA_FILE:
        broker_ca_pem = _certificates(Path(settings.BROKER_CA_FILE), needed=True)
    password = secrets.token_hex(24)
    password_hash = hashlib.sha256(password.encode()).hexdigest()
    token = _enrol(
        join=join,
        request=request,
        address=address,
        password_hash=password_hash,
        now=now,
    )
    problem = broker_user.make_user(join.name, password_hash)
    NodeJoin.objects.filter(pk=join.pk).update(
        broker_set=not problem, broker_problem=problem
    )
    answer = JoinAnswer(
        nonce=request.nonce,
        node=join.name,
        web_url=web_url,
        token=token,
        broker_url=node_broker_url(
            settings.REDIS_URL, node=join.name, password=password
        ),
        broker_plain=is_unencrypted(settings.REDIS_URL),
        broker_ready=not problem,
        ca_pem=ca_pem,
        broker_ca_pem=broker_ca_pem,
    )
    lines = [f"nonce {request.nonce}", f"answer {encode(answer).decode()}"]
    return sign_lines(ANSWER, lines, signing.private_key())


def _certificates(path: Path, *, needed: bool) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        if isinstance(error, FileNotFoundError) and not needed:
            return ""
        raise RequestRefused(
            "unavailable",
            sentence(
                "The portal cannot read {path}. Make it readable for the portal's "
                "user, then type the line again. The token is still valid.",
                path=str(path),
            ),
        ) from error


@transaction.atomic(durable=True)
def _enrol(
    *,
    join: NodeJoin,
    request: JoinRequest,
    address: str,
    password_hash: str,
    now: datetime,
) -> str:
    """Use the token up, enrol the node, and return its token."""
    rows = NodeJoin.objects.filter(pk=join.pk, used_at=None, withdrawn_at=None)
    if not rows.update(used_at=now):
        raise JoinRefused(JoinFault.USED)
    bind_key(join=join, public_key=request.public_key)
    try:
        if join.again:
            node, token = replace_token(name=join.name)
        else:
            node, token = add_node(name=join.name, simulated=False, now=now)
    except NodeExists as error:
        raise JoinRefused(JoinFault.NAME) from error
    NodeJoin.objects.filter(pk=join.pk).update(
        node=node,
        address=address or None,
        request=to_plain(request),
        broker_hash=password_hash,
    )
    record_join(
        node=node,
        public_key=request.public_key,
        machine_hash=request.machine_hash,
        boot_id=request.boot_id,
        now=now,
    )
    audit_act(
        verb="node.joined-again" if join.again else "node.joined",
        subject=f"node:{node.pk}",
        actor=None,
        now=now,
        name=node.name,
        address=address,
        key=key_fingerprint(request.public_key),
        hostname=request.hostname,
    )
    return token


def store_facts(*, node: Node, facts: dict[str, object], now: datetime) -> bool:
    """Store what a node's doctor found, at its newest join. Return whether there is
    one."""
    row = NodeJoin.objects.filter(node=node).order_by("-used_at").first()
    if row is None:
        return False
    row.facts, row.facts_at = facts, now
    row.save(update_fields=["facts", "facts_at"])
    return True


def _waiting(now: datetime) -> QuerySet[NodeJoin]:
    return NodeJoin.objects.filter(used_at=None, withdrawn_at=None, expires_at__gt=now)


def _withdraw(row: NodeJoin, *, actor: User, now: datetime) -> bool:
    rows = NodeJoin.objects.filter(pk=row.pk, used_at=None, withdrawn_at=None)
    if not rows.update(withdrawn_at=now):
        return False
    audit_act(
        verb="node.join-token-withdrawn",
        subject=f"node_join:{row.pk}",
        actor=actor,
        now=now,
        name=row.name,
    )
    return True
