"""Served models: files, endpoints, who may call them, and the way to the node."""
