"""`/ws/alerts/`: news for the bell of every page.

The socket reports that some Alert changed, but not which one, because each request for
the list decides what its user may see. It also carries the user's own Notices.
"""

from typing import Any

from reservations.models import User
from reservations.notifications.live import user_group
from reservations.web.session_consumer import SessionConsumer
from telemetry.live.broadcast import ALERTS, AlertsChanged


class AlertsConsumer(SessionConsumer):
    """A signed-in User's page with the list of Alerts."""

    def admit(self, user: User) -> frozenset[str]:
        """Every signed-in user may know that something changed."""
        return frozenset({ALERTS, user_group(user.pk)})

    async def alerts_changed(self, message: AlertsChanged) -> None:
        """Pass it on."""
        await self.send_json(message)

    async def notice_told(self, message: dict[str, Any]) -> None:
        """Pass on one of this User's own Notices."""
        await self.send_json(message)
