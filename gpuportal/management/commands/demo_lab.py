"""``manage.py demo_lab``: fill an empty portal with the demo lab."""

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from gpuportal.demo import load
from gpuportal.demo.cast import RECIPE_SETTINGS
from placement.jobs import service as jobs
from telemetry import paths


class Command(BaseCommand):
    """Make the demo lab once and print the logins."""

    help = "Load the demo lab: 2 simulated nodes, 4 groups, 16 students, 2 weeks."

    def handle(self, *args: object, **options: object) -> None:
        """Load, queue the running jobs, print the logins."""
        now = timezone.now()
        try:
            made = load.load(now=now, simulation=settings.VAR_DIR / "sim")
        except load.AlreadyThere:
            raise CommandError(
                "people exist already: the demo lab is only for an empty portal"
            ) from None
        for scene, reservation in made.scenes:
            if scene.recipe:
                jobs.launch(
                    user=reservation.user,
                    reservation_id=reservation.pk,
                    name=scene.purpose,
                    kind="recipe",
                    recipe=scene.recipe,
                    recipe_settings=RECIPE_SETTINGS[scene.recipe],
                    now=now,
                )
        lines = [f"{name:<8} {password}" for name, password in made.logins]
        paths.make_secret("logins.txt", "\n".join(lines) + "\n")
        self.stdout.write(f"demo lab: {made.reservations} reservations")
        for line in lines:
            self.stdout.write(f"  {line}")
