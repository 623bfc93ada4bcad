"""Notices: their sentences, and delivery by page, mail and webhook."""
