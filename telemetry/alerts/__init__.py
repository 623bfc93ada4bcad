"""Alerts: open findings, and what was done about them."""
