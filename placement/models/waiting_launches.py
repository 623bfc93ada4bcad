"""Jobs that wait for time on the waitlist, as they were asked for."""

from django.db import models
from django.utils import timezone


class WaitingLaunch(models.Model):
    """What is launched once a waiting request is placed.

    Checked when it was asked for, and again by the rules of any launch when it is
    placed. It goes with its request: placed, withdrawn or expired.
    """

    waiting = models.OneToOneField(
        "reservations.WaitingRequest", on_delete=models.CASCADE, related_name="launch"
    )
    launch = models.JSONField(help_text="Arguments of services.launch.")
    created_at = models.DateTimeField(default=timezone.now)

    def __str__(self) -> str:
        return str(self.launch.get("name", ""))
