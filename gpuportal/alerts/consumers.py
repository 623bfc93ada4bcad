"""`/ws/alerts/`: what the bell of every page hears.

That some Alert changed, and nothing of which one: who may see what is decided where
the list is made, on each asking anew. And one's own Notices, as they are told.
"""

from typing import Any

from reservations.models import User
from reservations.notifications.live import user_group
from reservations.web.session_consumer import SessionConsumer
from telemetry.live.broadcast import ALERTS, AlertsChanged


class AlertsConsumer(SessionConsumer):
    """A signed-in User's page with the list of Alerts."""

    def admit(self, user: User) -> frozenset[str]:
        """Everybody who is signed in may know that something changed."""
        return frozenset({ALERTS, user_group(user.pk)})

    async def alerts_changed(self, message: AlertsChanged) -> None:
        """Hand it on."""
        await self.send_json(message)

    async def notice_told(self, message: dict[str, Any]) -> None:
        """Hand on one of this User's own Notices."""
        await self.send_json(message)
