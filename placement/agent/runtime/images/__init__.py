"""Recipe ``fine-tune-images``: its data set, and a rank of its training."""
