"""The tick of jobs: what should start, run and end now."""
