"""Passwords: reset by mail, and change."""
