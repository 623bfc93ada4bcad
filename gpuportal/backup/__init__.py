"""Backups that prove themselves: made, verified and restored by ``manage.py``."""
