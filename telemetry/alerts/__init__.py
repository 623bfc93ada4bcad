"""Alerts: findings that are open, and what was done about them."""
