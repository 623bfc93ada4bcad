"""What a model consists of: ModelSpec, layers, blocks, parameters."""
