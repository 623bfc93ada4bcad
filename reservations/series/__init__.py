"""Reservations that repeat."""
