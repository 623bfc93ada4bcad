"""Benchmarks of the portal beside a Slurm cluster."""
