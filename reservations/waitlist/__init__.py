"""Requests that wait for GPUs: the queue, its estimates, its scheduler."""
