"""Co-users, offers, swaps and calendar feeds."""
