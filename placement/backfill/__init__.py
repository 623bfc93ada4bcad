"""Jobs that run in the gaps between reservations, and leave when a GPU is booked."""
