"""What the benchmarks run on: databases, processes, loads and rivals."""
