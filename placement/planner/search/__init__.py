"""The search for plans: exact splits, step times, ranking, refusals."""
