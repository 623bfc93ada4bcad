"""Pages of the calendar, of one Reservation, and of one's standing."""

from reservations.views.calendar import calendar
from reservations.views.history import account_history
from reservations.views.reservation import reservation
from reservations.views.standing import ledger_csv, standing
from reservations.views.waiting import waiting

__all__ = [
    "account_history",
    "calendar",
    "ledger_csv",
    "reservation",
    "standing",
    "waiting",
]
