"""Pure rules of jobs: refusals, sweeps, backfill, moves, progress read from logs."""
