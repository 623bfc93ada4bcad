"""Jobs that Slurm runs: the agent on a host of Slurm submits and follows them."""
