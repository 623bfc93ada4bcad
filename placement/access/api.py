"""Certificates for ssh: /api/v1/ssh-certificates."""

from typing import Any, TypedDict

from django.http import HttpRequest
from django.utils import timezone
from ninja import Router, Schema, Status
from pydantic import ConfigDict, Field

from placement.access.ssh_authority import HOSTS, authority_line, host_name
from placement.access.ssh_certificates import issue_certificate
from reservations.accounts.ssh_keys.public_key import MOST_CHARACTERS
from reservations.store.calendar_queries import iso
from reservations.web.api_parts import signed_in
from reservations.web.schemas import Key, Line
from telemetry.web.answer_types import UtcInstant

router = Router(tags=["placement"])


class CertificateIn(Schema):
    """A stored public key, and the reservation whose nodes it is to open."""

    model_config = ConfigDict(extra="forbid")
    reservation: Key
    public_key: str = Field(min_length=1, max_length=MOST_CHARACTERS)
    node: Line = Field("", max_length=64)
    """One of its nodes. Empty: the first."""


class CertificateAnswer(TypedDict):
    """A certificate for ssh, and how the node is recognised."""

    certificate: str
    """The line of a -cert.pub file."""
    user: str
    """Unix user on the node."""
    node: str
    until: UtcInstant
    host_key_alias: str
    """HostKeyAlias for ssh."""
    hosts: str
    """Pattern of the hosts that the authority signs."""
    authority: str
    """The @cert-authority line of a known_hosts file."""


@router.post("/ssh-certificates", response={201: dict[str, Any]})
def ssh_certificate(
    request: HttpRequest, body: CertificateIn
) -> Status[CertificateAnswer]:
    """Make a certificate for one of the caller's keys, until the reservation ends."""
    made = issue_certificate(
        signed_in(request),
        body.reservation,
        body.public_key,
        node_name=body.node,
        now=timezone.now(),
    )
    return Status(
        201,
        {
            "certificate": made.line,
            "user": made.account,
            "node": made.target.node,
            "until": iso(made.until),
            "host_key_alias": host_name(made.target.node),
            "hosts": HOSTS,
            "authority": authority_line(),
        },
    )
