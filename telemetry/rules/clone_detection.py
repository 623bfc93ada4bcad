"""Whether a node that proves itself gets a short token, or is a second machine.

A machine counts its short tokens, and each proof names the number of its last one. Two
machines with the same disk count from the same number. The first of them that renews
gets the next token. The other one then shows a number that is behind, and is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from telemetry.protocol.node_proof import ProofFault


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownNode:
    """What the portal has stored of a node."""

    enrolment: str
    """Hash of the enrolment token."""
    bound_enrolment: str
    """Hash of the enrolment token with which the key was bound; "": none was."""
    public_key: str
    number: int
    """Number of the last short token of the bound enrolment; 0: none yet."""
    token_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownProof:
    """What a node shows. Its key signed it."""

    enrolment: str
    public_key: str
    number: int
    """Number of the last short token that the machine has; 0: none."""
    next_hash: str
    """Hash of the short token that it asks for."""


def judge_proof(known: KnownNode, shown: ShownProof) -> int | ProofFault:
    """Return the number of the short token that the node gets, or why it gets none.

    The same request again gives the same number, because its answer may have been lost.
    A number ahead of the portal's is accepted: after a restore the portal knows an
    older one.
    """
    if shown.enrolment != known.enrolment:
        return ProofFault.ENROLMENT
    bound = known.bound_enrolment == known.enrolment
    if bound and shown.public_key != known.public_key:
        return ProofFault.OTHER_KEY
    last = known.number if bound else 0
    if shown.number >= last:
        return shown.number + 1
    if shown.number == last - 1 and shown.next_hash == known.token_hash:
        return last
    return ProofFault.BEHIND
