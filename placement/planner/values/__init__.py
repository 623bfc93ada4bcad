"""The planner's input and output: workloads, GPUs, plans, errors."""
