"""Reservations: book, change, cancel, give back, stay on, undo."""
