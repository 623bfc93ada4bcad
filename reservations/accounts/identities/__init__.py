"""Logins at identity providers: settings, persons, and rights by groups."""
