"""Nodes, GPUs, samples and alerts."""
