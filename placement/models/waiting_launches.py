"""Jobs that wait with a request on the waitlist, as they were submitted."""

from django.db import models
from django.utils import timezone


class WaitingLaunch(models.Model):
    """The Job that is launched once a waiting request is placed.

    It is checked when it is submitted, and again like any launch when the request is
    placed. It is deleted with its request: placed, withdrawn or expired.
    """

    waiting = models.OneToOneField(
        "reservations.WaitingRequest", on_delete=models.CASCADE, related_name="launch"
    )
    launch = models.JSONField(help_text="Arguments of services.launch.")
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return str(self.launch.get("name", ""))
