"""Whether people use what they hold: check-in, no-shows, idle GPUs, intruders."""
