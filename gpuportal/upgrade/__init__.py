"""Upgrades: what one will do, the steps of one, and the test after it."""
