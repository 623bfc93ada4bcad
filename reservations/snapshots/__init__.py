"""Stored rows as frozen values: the only translator between models and domain."""
