"""Which join tokens are accepted, and which brokers other machines can reach."""

from __future__ import annotations

import hmac
from datetime import timedelta
from ipaddress import ip_address
from urllib.parse import quote, urlsplit, urlunsplit

from gpuportal.node_join.join_refusal import JoinFault
from placement.protocol.join_messages import secret_sum

LIFE = timedelta(minutes=15)
"""How long a join token can be used."""
MOST_WRONG = 10
"""Wrong secrets after which a token ends."""
MOST_FAILURES = 20
"""Wrong secrets of one address within `FAILURE_SECONDS`."""
FAILURE_SECONDS = 600


def token_fault(
    *, state: str, stored_sum: str, secret: str, wrong_count: int
) -> JoinFault | None:
    """Return why a known token is refused; None if it is accepted.

    The secret is compared first, in constant time. So only a person who has the token
    learns what became of it.

    Args:
        state: ``waiting``, ``used``, ``withdrawn`` or ``expired``.
        stored_sum: the hash of the right secret.
        wrong_count: how often a wrong secret was tried.
    """
    if not hmac.compare_digest(stored_sum, secret_sum(secret)):
        return JoinFault.UNKNOWN
    if state != "waiting":
        return JoinFault(state)
    return JoinFault.TRIED if wrong_count >= MOST_WRONG else None


def reachable_broker(url: str) -> bool:
    """Return whether other machines can reach the broker at an address.

    >>> reachable_broker("rediss://portal:x@gpu.example.org:6379/0")
    True
    >>> reachable_broker("redis://localhost/0"), reachable_broker("unix:///run/v.sock")
    (False, False)
    """
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss") or not parts.hostname:
        return False
    try:
        return not ip_address(parts.hostname).is_loopback
    except ValueError:
        return parts.hostname != "localhost"


def node_broker_url(url: str, *, node: str, password: str) -> str:
    """Return the portal's broker address with the user of a node.

    Options of the portal's address are left out, because they name its own files.

    >>> node_broker_url("rediss://portal:x@gpu.lab/0?a=b", node="atlas", password="y")
    'rediss://node-atlas:y@gpu.lab/0'
    """
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    user = f"node-{node}:{quote(password, safe='')}"
    return urlunsplit((parts.scheme, f"{user}@{place}", parts.path, "", ""))
