"""The calendar's socket, and the choice between its two audiences."""

from typing import Any

from reservations.models import SitePolicy, User
from reservations.notifications import live
from reservations.web.session_consumer import SessionConsumer


def calendar_audience(user: User) -> str:
    """Return the group whose messages this User may read: with names, or without."""
    if user.is_operator or SitePolicy.current().names_visible:
        return live.NAMED
    return live.PLAIN


class CalendarConsumer(SessionConsumer):
    """`/ws/calendar/`: Reservations as they change."""

    def admit(self, user: User) -> frozenset[str]:
        """Admit every signed-in User, with or without names, and to their own group."""
        return frozenset({calendar_audience(user), live.user_group(user.pk)})

    async def reservation_changed(self, event: dict[str, Any]) -> None:
        """Pass on one `reservation.changed` message
        (reservations/notifications/live.py)."""
        await self.send_json(event)

    async def closures_changed(self, event: dict[str, Any]) -> None:
        """Report that the closures have changed. The page reads them again."""
        await self.send_json(event)

    async def notice_told(self, event: dict[str, Any]) -> None:
        """Send one `notice.told` message of this User to the page."""
        await self.send_json(event)
