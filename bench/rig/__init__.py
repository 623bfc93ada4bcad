"""Shared parts of the benchmarks: databases, processes, loads and peers."""
