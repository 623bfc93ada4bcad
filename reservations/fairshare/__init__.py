"""Ranks and standings as pages show them."""
