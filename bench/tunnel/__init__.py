"""Streams and calls between the portal and a node."""
