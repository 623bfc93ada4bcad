"""The nodes' channel for ssh: accepted principals, and host certificates."""

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from placement.access.ssh_authority import host_certificate
from placement.access.ssh_certificates import access_of
from placement.access.ssh_offers import note_offer
from placement.jobs.nodes.node_channel import body_of, for_nodes, length_of, refused
from placement.protocol import signing
from placement.protocol.ssh_access import MOST_KEY_CHARACTERS, SshAnswer
from reservations.accounts.ssh_keys.public_key import SshKeyRefused, parse_public_key
from telemetry.models import Node
from telemetry.protocol.codec import encode
from telemetry.web.error_answers import problem_response


@for_nodes("POST")
def ssh_access(request: HttpRequest, node: Node) -> HttpResponse:
    """Answer with the node's principals. The body is its public host key, or empty."""
    if not 0 <= length_of(request) <= MOST_KEY_CHARACTERS:
        return refused("too-large", f"at most {MOST_KEY_CHARACTERS} bytes")
    text = body_of(request).decode("ascii", errors="replace")
    now = timezone.now()
    certificate = ""
    if text.strip():
        try:
            line = parse_public_key(text).line
        except SshKeyRefused as error:
            return problem_response(error)
        certificate = host_certificate(line, node=node.name, now=now)
    note_offer(node.name)
    payload = access_of(node, now).payload()
    answer = SshAnswer(payload, signing.sign(payload), certificate)
    return HttpResponse(encode(answer), content_type="application/json")
