"""Pages of the second floor: plan a model, run and watch Jobs."""
