"""The ready recipes: training as a plan describes it, in torch."""
