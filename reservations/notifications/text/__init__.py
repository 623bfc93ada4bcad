"""The words of notices, and of refusals that name what is wrong."""
