"""`/ws/alerts/`: says that some Alert changed, and nothing of which one.

Who may see what is decided where the list is made, on each asking anew.
"""

from reservations.consumers import SessionConsumer
from reservations.models import User
from telemetry.live import ALERTS, AlertsChanged


class AlertsConsumer(SessionConsumer):
    """A signed-in User's page with the list of Alerts."""

    def admit(self, user: User) -> frozenset[str]:
        """Everybody who is signed in may know that something changed."""
        return frozenset({ALERTS})

    async def alerts_changed(self, message: AlertsChanged) -> None:
        """Hand it on."""
        await self.send_json(message)
