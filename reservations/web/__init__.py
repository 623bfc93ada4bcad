"""Shared parts of the pages and APIs of all capabilities of this app."""
