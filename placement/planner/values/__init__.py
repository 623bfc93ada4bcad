"""What the planner takes and returns: workloads, GPUs, plans, errors."""
