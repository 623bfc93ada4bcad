"""Streams from the portal to services of a node, such as its ssh server."""
