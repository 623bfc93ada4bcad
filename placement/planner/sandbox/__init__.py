"""Processes of their own that read files from people, within limits."""
