"""Backups that verify themselves: made, verified and restored by ``manage.py``."""
