"""`manage.py health`: the result of `/readyz` in a terminal."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError

from gpuportal.monitoring import health


class Command(BaseCommand):
    """Prints one line for each part. The exit status is 1 if something is wrong."""

    help = "Check database, broker, periodic tasks, disk and migrations."

    def handle(self, *args: Any, **options: Any) -> None:
        """Check once."""
        state = health.check_health()
        troubles = state.troubles()
        if troubles:
            raise CommandError("\n".join(troubles), returncode=1)
        ages = [age for age in state.tick_ages.values() if age is not None]
        self.stdout.write(
            "All is well: database and broker answer, every periodic task was done "
            f"within {max(ages, default=0):.0f} s, {state.disk_free_bytes / 2**30:.0f} "
            "GiB are free, no migration waits."
        )
