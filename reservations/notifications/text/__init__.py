"""The texts of notices and of refusals."""
