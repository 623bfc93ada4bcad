"""Pure rules of jobs: refusals, sweeps, backfill, moves, what their logs say."""
