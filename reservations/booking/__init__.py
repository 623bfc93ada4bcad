"""Reservations: book, change, release, overstay, undo."""
