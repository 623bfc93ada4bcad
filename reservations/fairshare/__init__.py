"""Ranks and standings as people see them."""
