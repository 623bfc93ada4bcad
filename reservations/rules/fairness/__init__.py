"""Fair Tree ranks, preemption, quotas, limits and no-shows."""
