"""Django's configuration of accounts, quotas, the calendar and the ledger."""

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy


class ReservationsConfig(AppConfig):
    """Accounts, Reservations, LedgerEntries."""

    name = "reservations"
    verbose_name = gettext_lazy("Reservations")

    def ready(self) -> None:
        """Install the constraints that only the database can enforce."""
        from reservations import checks
        from reservations.models import triggers
        from reservations.rules import booking_alerts

        # Importing them registers them.
        assert checks.check_database_guards and booking_alerts.INTRUDER

        # After every migrate: SQLite drops triggers when it rebuilds a table.
        post_migrate.connect(triggers.install, sender=self)
