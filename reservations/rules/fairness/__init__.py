"""Who comes first: Fair Tree, preemption, quotas, limits, no-shows."""
