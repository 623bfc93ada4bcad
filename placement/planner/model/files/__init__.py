"""Readers of weight files: names, shapes and types, never the weights."""
