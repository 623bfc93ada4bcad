"""Served models: files, endpoints, access, and the way to the node."""
