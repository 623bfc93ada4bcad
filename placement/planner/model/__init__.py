"""The description of a model: ModelSpec, layers, blocks, parameters."""
