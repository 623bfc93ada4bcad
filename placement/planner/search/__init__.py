"""The search for plans: exact splits, timing, ranking and refusals."""
