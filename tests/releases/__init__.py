"""Databases of releases, and the data that every later version must find in them."""
