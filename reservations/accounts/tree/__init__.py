"""The account tree: edited, imported, previewed and undone."""
