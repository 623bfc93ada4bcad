"""Compares running jobs with better plans, and proposes or makes moves."""
