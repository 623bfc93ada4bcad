"""Jobs that run in the gaps between reservations."""
