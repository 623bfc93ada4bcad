"""What a model is made of: a ModelSpec, its blocks, its parameters."""
