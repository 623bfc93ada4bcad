"""Tokens of nodes: who shows one, and who gets the next one."""

import hmac
from datetime import datetime, timedelta

from django.db import transaction

from telemetry.models import Node, NodeIdentity
from telemetry.protocol.node_proof import NodeProof, ProofFault
from telemetry.protocol.node_token import LIFE_SECONDS, token_hash
from telemetry.rules.clone_detection import (
    KnownNode,
    ShownProof,
    judge_proof,
)

LIFE = timedelta(seconds=LIFE_SECONDS)
OVERLAP = timedelta(minutes=10)
"""How long the token before is accepted, for requests that are under way."""


def node_with_token(name: str, token: str, now: datetime) -> Node | None:
    """Return the node in service of a token. Cost: one query."""
    return _node_with_hash(name, token_hash(token), now)


def accepts_hash(name: str, shown: str, now: datetime) -> bool:
    """Return whether a token is accepted now, from its hash. Cost: one query.

    The caller must have got the token itself before: a backup has the hashes.
    """
    return _node_with_hash(name, shown, now) is not None


def _node_with_hash(name: str, shown: str, now: datetime) -> Node | None:
    nodes = Node.objects.in_service().select_related("identity")
    node = nodes.filter(name=name).first()
    if node is None:
        return None
    enrolled = hmac.compare_digest(node.token_hash, shown)
    known = getattr(node, "identity", None)
    if known is None or not _proved(node, known):
        return node if enrolled else None
    # A worker of release 0.1.0 cannot prove itself, and reports no release.
    if not node.release and enrolled:
        return node
    issued_at: datetime = known.token_issued_at
    current = hmac.compare_digest(known.token_hash, shown)
    before = hmac.compare_digest(known.token_before_hash, shown)
    valid = (current and now < issued_at + LIFE) or (
        before and now < issued_at + OVERLAP
    )
    return node if valid else None


def is_enrolled(name: str, enrolment: str) -> bool:
    """Return whether a node in service still has the enrolment that it had.

    Args:
        enrolment: the hash of its enrolment token.
    """
    rows = Node.objects.in_service().filter(name=name, token_hash=enrolment)
    return rows.exists()


def token_issued_at(node: Node) -> datetime | None:
    """Return when a node got its short token; None: it has none."""
    known = NodeIdentity.objects.filter(node=node).first()
    return known.token_issued_at if known and _proved(node, known) else None


def proving_machine(name: str) -> str:
    """Return host name and address of the machine that got a node's last token."""
    rows = NodeIdentity.objects.filter(node__name=name)
    return rows.values_list("proved_from", flat=True).first() or ""


def renew_short_token(
    proof: NodeProof, *, enrolment: str, machine: str, now: datetime
) -> int | ProofFault:
    """Give a node that proved its key the short token that it asks for.

    Cost: one query for a request that does not know the enrolment token. Only a node
    that shows it locks its row.

    Args:
        proof: whose signature and challenge are right.
        enrolment: the enrolment token itself. The proof has its hash, which readers of
            the database know too.
        machine: host name and address, for people.

    Returns:
        The number of the token, or why it is refused.
    """
    nodes = Node.objects.in_service().filter(name=proof.node)
    if not _shows_enrolment(nodes.first(), proof, enrolment):
        return ProofFault.ENROLMENT
    with transaction.atomic(durable=True):
        # It may have joined again since then.
        node = nodes.select_for_update(no_key=True).first()
        if node is None or not _shows_enrolment(node, proof, enrolment):
            return ProofFault.ENROLMENT
        return _renew(node, proof, machine, now)


def _shows_enrolment(node: Node | None, proof: NodeProof, enrolment: str) -> bool:
    return (
        node is not None
        and node.accepts(enrolment)
        and hmac.compare_digest(node.token_hash, proof.enrolment)
    )


def _renew(
    node: Node, proof: NodeProof, machine: str, now: datetime
) -> int | ProofFault:
    known, _ = NodeIdentity.objects.select_for_update().get_or_create(node=node)
    found = judge_proof(
        KnownNode(
            enrolment=node.token_hash,
            bound_enrolment=known.enrolment_hash,
            public_key=known.public_key,
            number=known.token_number,
            token_hash=known.token_hash,
        ),
        ShownProof(
            enrolment=proof.enrolment,
            public_key=proof.public_key,
            number=proof.number,
            next_hash=proof.next_hash,
        ),
    )
    if isinstance(found, ProofFault):
        known.refused_from, known.refused_at = machine, now
        known.save(update_fields=["refused_from", "refused_at"])
        return found
    if known.token_hash != proof.next_hash:
        bound = known.enrolment_hash == node.token_hash and known.token_number > 0
        known.token_before_hash = known.token_hash if bound else node.token_hash
        known.token_hash = proof.next_hash
    elif known.token_issued_at is None or now >= known.token_issued_at + OVERLAP:
        known.token_before_hash = ""
    # Its life begins with the last answer. The first one may have been lost a day ago.
    known.token_issued_at = now
    known.enrolment_hash, known.public_key = node.token_hash, proof.public_key
    known.token_number, known.proved_from = found, machine
    known.save()
    return found


def _proved(node: Node, known: NodeIdentity) -> bool:
    """Whether the node has got a short token since its enrolment."""
    return (
        known.enrolment_hash == node.token_hash
        and known.token_number > 0
        and known.token_issued_at is not None
    )
