"""Alerts: open findings, and the acts that answered them."""
