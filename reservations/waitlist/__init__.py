"""Requests that wait for GPUs: queue, planned starts, scheduler, estimates."""
