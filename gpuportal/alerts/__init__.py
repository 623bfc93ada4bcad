"""Alerts as people see them, and the responses to them."""
