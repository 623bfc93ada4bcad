"""Check this node's HTTPS channel to the portal, at the start and each minute.

Samples use the broker's user, so a wrong token would go unnoticed until a Job fails.
For that reason the node presents its token to the portal, compares the order key, logs
every problem and reports it in ``facts.<node>``. Before that it renews the token if it
is due (token_renewal.py).
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from placement.agent import token_renewal
from placement.agent.job_folder import NodeView
from placement.agent.portal_channel import (
    ChannelDown,
    ChannelRefused,
    TokenRefused,
    request,
)
from placement.protocol import signing
from placement.protocol.events import ChannelFact, ChannelState
from placement.protocol.node_http import BOOT_HEADER, MOST_BOOT_ID
from telemetry.agent.process_owners import boot_id

EVERY_SECONDS = 60.0
AGAIN_SECONDS = 10.0
"""After a check that failed, or a fact that the broker did not accept."""

logger = logging.getLogger(__name__)


def check(node: NodeView) -> ChannelFact:
    """Ask the portal once. Cost: one small request."""
    try:
        token = node.token()
    except ValueError as error:
        return ChannelFact(ChannelState.TOKEN, str(error))
    try:
        url = f"{node.web_url}/node/v1/hello"
        boot = {BOOT_HEADER: boot_id()[:MOST_BOOT_ID]}
        _, body = request("GET", url, node=node.name, token=token, headers=boot)
        expected = json.loads(body)["order_key_sha256"]
    except TokenRefused:
        return token_renewal.unknown(node)
    except ChannelRefused as error:
        return ChannelFact(ChannelState.DOWN, f"the portal answered {error}")
    except (ChannelDown, ValueError, KeyError, TypeError) as error:
        return ChannelFact(ChannelState.DOWN, str(error))
    try:
        found = signing.public_key_sha256(node.order_key_pem().decode())
    except ValueError as error:
        return ChannelFact(ChannelState.ORDER_KEY, str(error))
    if found != expected:
        why = "the order key is not the portal's: copy order_key.pub from it again"
        return ChannelFact(ChannelState.ORDER_KEY, why)
    return ChannelFact(ChannelState.OK)


class ChannelWatch:
    """A thread that checks the channel until `stop` is set."""

    def __init__(self, node: NodeView) -> None:
        self.node = node
        self.known: ChannelFact | None = None
        self.fault: ChannelFact | None = None
        """Why the token could not be renewed."""

    def run(
        self, stop: threading.Event, tell: Callable[[dict[str, Any]], bool]
    ) -> None:
        """Check at once, then each minute; sooner after a failure."""
        while not stop.is_set():
            well = self.check_and_report(tell)
            stop.wait(EVERY_SECONDS if well else AGAIN_SECONDS)

    def _checked(self) -> ChannelFact:
        found = check(self.node)
        ended = found.state is ChannelState.REFUSED
        if not ended or not token_renewal.proves_itself(self.node):
            return found
        # Its token has ended, for example because the node was off for a week.
        return token_renewal.renew(self.node) or check(self.node)

    def check_and_report(self, tell: Callable[[dict[str, Any]], bool]) -> bool:
        """Check once and report the result. Return whether the channel works."""
        fault = token_renewal.renew_if_due(self.node)
        if fault is not None and fault != self.fault:
            logger.warning("the token is not renewed: %s", fault.detail)
        self.fault = fault
        # The present token may be good for some hours.
        refused = fault is not None and fault.state is ChannelState.REFUSED
        found = fault if fault is not None and refused else self._checked()
        if found != self.known:
            if found.state is not ChannelState.OK:
                logger.error("no channel to the portal: %s", found.detail)
            elif self.known is not None:
                logger.info("the channel to the portal works again")
            self.known = found
        told = tell(found.message(time.time()))
        return told and found.state is ChannelState.OK
