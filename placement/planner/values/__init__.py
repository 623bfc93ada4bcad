"""What the planner is given and what it answers: workloads, GPUs, plans, errors."""
