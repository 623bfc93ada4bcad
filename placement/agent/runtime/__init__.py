"""The ready recipes: training in torch as a plan describes it."""
