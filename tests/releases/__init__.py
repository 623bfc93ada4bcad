"""Databases that releases made, and what every later version must find in them."""
