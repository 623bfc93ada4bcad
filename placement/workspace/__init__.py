"""Workspaces: notebooks and TensorBoard in a reservation, each on a separate origin."""
