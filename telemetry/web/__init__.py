"""Shared parts of the pages of all apps: forms, error sentences, spreadsheets."""
