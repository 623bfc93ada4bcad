"""Who comes first: fair shares, preemption, quotas, no-shows."""
