"""Plans for a model on the lab's GPUs: made, compared, saved, measured."""
