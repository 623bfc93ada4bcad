"""Whether people use what they hold: check-in, idle GPUs, foreign processes."""
