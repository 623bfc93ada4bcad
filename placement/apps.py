"""Django's configuration of placement: from a model to a plan to a job."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy


class PlacementConfig(AppConfig):
    """ModelSpecs, Plans and Jobs."""

    name = "placement"
    verbose_name = gettext_lazy("Placement")

    def ready(self) -> None:
        """Register the checks, and the functions that bookings call about Jobs."""
        from placement import checks
        from placement.models import triggers
        from placement.rules import job_alerts

        # Importing them registers them.
        assert checks.scripts_without_isolation and job_alerts.HELD_RULE
        # After every migrate: SQLite drops triggers when it rebuilds a table.
        post_migrate.connect(triggers.install, sender=self)
        from placement.jobs import bound_gpus
        from placement.jobs.release_guard import check_nothing_runs
        from placement.waitlist.service import CARRIER
        from reservations.booking.partial_release import GATES
        from reservations.engines.bound_cards import HOOKS
        from reservations.store.attached_jobs import CARRIERS

        if check_nothing_runs not in GATES:
            GATES.append(check_nothing_runs)
        if CARRIER not in CARRIERS:
            CARRIERS.append(CARRIER)
        if bound_gpus.HOOKS not in HOOKS:
            HOOKS.append(bound_gpus.HOOKS)
