"""Pages of the calendar, of one Reservation, and of one's standing."""
