"""The tree of accounts: edit, import, preview and undo."""
