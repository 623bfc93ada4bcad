"""Which nodes offer ssh through the portal now.

Only such a node fetches the list of principals, every few seconds. The broker remembers
that for a minute.
"""

import logging
from collections.abc import Sequence
from typing import Any

import redis

from telemetry.live.broker_client import BROKER

KEY = "ssh.offered."
SECONDS = 60
OUTAGES = (redis.ConnectionError, redis.TimeoutError, OSError)

logger = logging.getLogger(__name__)


def note_offer(node: str) -> None:
    """Remember that a node offers ssh. During an outage of the broker nothing is."""
    try:
        BROKER.set(KEY + node, 1, ex=SECONDS)
    except OUTAGES as error:
        logger.warning("an offer of ssh is not remembered: %s", error)


def offering_nodes(nodes: Sequence[str]) -> set[str]:
    """Return those of the nodes that offer ssh. During an outage: none."""
    if not nodes:
        return set()
    try:
        found: Any = BROKER.mget([KEY + node for node in nodes])
    except OUTAGES as error:
        logger.warning("offers of ssh are not known: %s", error)
        return set()
    return {node for node, value in zip(nodes, found, strict=True) if value}
