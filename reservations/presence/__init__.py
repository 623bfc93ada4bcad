"""Whether people use what they booked: check-in, no-shows, idle GPUs, intruders."""
