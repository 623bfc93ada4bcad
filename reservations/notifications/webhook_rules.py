"""Rules for the addresses of webhooks, and their signatures.

The portal calls an address that a User typed, from inside the institute's network
(OWASP "Server Side Request Forgery Prevention"). So it allows only https, and only
public addresses or networks that the site lists. The name is resolved and checked again
at every call, and the call goes to the checked address, not to the name.

Signature: ``sha256=`` and hex of HMAC-SHA256 over ``<timestamp>.<body>``, as GitHub and
Stripe do it. The timestamp lets a receiver refuse a replayed call.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
)
from urllib.parse import urlsplit

from telemetry.protocol.coded_error import FieldsRefused
from telemetry.protocol.sentences import sentence

LONGEST = 400
Network = IPv4Network | IPv6Network
NAT64 = IPv6Network("64:ff9b::/96")
IETF_PROTOCOLS = IPv4Network("192.0.0.0/24")
"""Reserved by RFC 6890. Python 3.11 calls parts of it public."""


class WebhookRefused(FieldsRefused):
    """The portal does not call this address."""

    code = "webhook-refused"

    def __init__(self, why: str) -> None:
        super().__init__({"url": why})


@dataclass(frozen=True, slots=True)
class WebhookAddress:
    """A webhook's address in its parts."""

    secure: bool
    host: str
    port: int
    path: str
    """Including the query."""


def parse(url: str, *, loopback_http: bool = False) -> WebhookAddress:
    """Return an address in its parts.

    Args:
        loopback_http: also plain http to this very machine (development only).

    Raises:
        WebhookRefused: it is no https address, or hides a name or password.

    >>> parse("https://hooks.example.org/x?y=1")
    WebhookAddress(secure=True, host='hooks.example.org', port=443, path='/x?y=1')
    """
    if len(url) > LONGEST:
        raise WebhookRefused(
            sentence("It is longer than {longest} characters.", longest=LONGEST)
        )
    if not url.isascii() or any(c.isspace() or not c.isprintable() for c in url):
        raise WebhookRefused(
            sentence("It contains spaces or characters that an address cannot have.")
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise WebhookRefused(sentence("It is not an address.")) from error
    if parts.scheme not in ("https", "http") or not parts.hostname:
        raise WebhookRefused(sentence("It does not begin with https:// and a host."))
    if parts.username is not None or parts.password is not None:
        raise WebhookRefused(
            sentence("It contains a user name or password. Leave them out.")
        )
    local = loopback_http and parts.hostname in ("127.0.0.1", "::1", "localhost")
    if parts.scheme == "http" and not local:
        raise WebhookRefused(
            sentence("It must begin with https://: notices name people.")
        )
    path = parts.path or "/"
    return WebhookAddress(
        secure=parts.scheme == "https",
        host=parts.hostname,
        port=(443 if parts.scheme == "https" else 80) if port is None else port,
        path=f"{path}?{parts.query}" if parts.query else path,
    )


def allowed(address: str, *, networks: Iterable[Network] = ()) -> bool:
    """Return whether the portal may call this IP address.

    Public addresses are allowed, and those in the site's own list of networks. An IPv6
    address that contains an IPv4 one (mapped, NAT64) is judged by that IPv4 address.

    >>> allowed("93.184.216.34"), allowed("10.0.0.5"), allowed("169.254.169.254")
    (True, False, False)
    >>> allowed("::ffff:127.0.0.1"), allowed("64:ff9b::7f00:1"), allowed("192.0.0.192")
    (False, False, False)
    >>> allowed("10.0.0.5", networks=[IPv4Network("10.0.0.0/24")])
    True
    """
    try:
        found = _embedded_ipv4(ip_address(address.partition("%")[0]))
    except ValueError:
        return False
    if any(found.version == net.version and found in net for net in networks):
        return True
    if isinstance(found, IPv6Address) and found.is_site_local:
        # Removed by RFC 3879, still routed inside some sites, "global" to Python.
        return False
    if isinstance(found, IPv4Address) and found in IETF_PROTOCOLS:
        return False
    return found.is_global and not (
        found.is_multicast or found.is_reserved or found.is_unspecified
    )


def _embedded_ipv4(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address in NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def signature(secret: str, *, timestamp: int, body: bytes) -> str:
    """Return the header's value that proves who sent a body, and when.

    >>> signature("s", timestamp=1, body=b"{}")[:15]
    'sha256=b253639b'
    """
    message = str(timestamp).encode() + b"." + body
    digest = hmac.new(secret.encode(), message, hashlib.sha256).hexdigest()
    return f"sha256={digest}"
