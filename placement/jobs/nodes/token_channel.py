"""The web's side of a node's proof: a challenge, then a short token.

Both are open to everybody. A proof counts only if its key signed it and the request
shows the enrolment token itself. The hash in the proof is not sufficient, because it is
stored in the database. An answer has no secret: the node made the token itself.
"""

import secrets

from axes.helpers import get_client_ip_address
from django.contrib.auth.decorators import login_not_required
from django.core import signing
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST, require_safe

from placement.jobs.nodes.node_channel import (
    body_of,
    length_of,
    name_and_token,
    refused,
)
from placement.protocol.node_refusals import NodeProofRefused
from reservations.rules.errors import TooFast
from reservations.web.rate_limits import check_address_rate
from telemetry.inventory.short_tokens import proving_machine, renew_short_token
from telemetry.protocol.codec import Malformed
from telemetry.protocol.node_proof import MOST_PROOF_BYTES, ProofFault, read_proof
from telemetry.protocol.node_token import LIFE_SECONDS
from telemetry.web.error_answers import problem_response

CHALLENGE_SECONDS = 60
PER_MINUTE = 300
"""Proofs from one address. Several hundred nodes may be behind one, and a node that is
refused for its rate asks again after ten seconds."""
_SIGNER = "placement.node-challenge"


@require_safe
@never_cache
@login_not_required
def challenge(request: HttpRequest) -> HttpResponse:
    """Send a text that the next proof has to contain."""
    signer = signing.TimestampSigner(salt=_SIGNER)
    return JsonResponse({"challenge": signer.sign(secrets.token_urlsafe(16))})


@csrf_exempt
@require_POST
@never_cache
@login_not_required
def token(request: HttpRequest) -> HttpResponse:
    """Accept the short token of a node that proves its key.

    A node that the proof does not fit gets the same answer as an unknown one.
    """
    address, now = get_client_ip_address(request) or "?", timezone.now()
    try:
        check_address_rate(
            "node-token", address=address, per_minute=PER_MINUTE, now=now
        )
    except TooFast as error:
        return problem_response(error)
    length = length_of(request)
    if length < 0:
        return refused("length-needed", "the length must be known")
    if length > 2 * MOST_PROOF_BYTES:
        return refused("too-large", f"at most {2 * MOST_PROOF_BYTES} bytes")
    try:
        proof = read_proof(body_of(request))
        signing.TimestampSigner(salt=_SIGNER).unsign(
            proof.challenge, max_age=CHALLENGE_SECONDS
        )
    except Malformed as error:
        return refused("invalid", str(error))
    except signing.BadSignature:
        return refused("invalid", "challenge: it has expired, or is not of this portal")
    machine = f"{proof.hostname[:60] or '?'} ({address})"
    name, enrolment = name_and_token(request.headers.get("Authorization", ""))
    found = renew_short_token(
        proof,
        enrolment=enrolment if name == proof.node else "",
        machine=machine,
        now=now,
    )
    if found is ProofFault.ENROLMENT:
        return refused("signed-out", "no such node, or not its token")
    if isinstance(found, ProofFault):
        other = proving_machine(proof.node)
        return problem_response(NodeProofRefused(found, node=proof.node, other=other))
    return JsonResponse({"number": found, "seconds": LIFE_SECONDS})
