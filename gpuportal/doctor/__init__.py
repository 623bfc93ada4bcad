"""Check a portal or a GPU node: one line for each check, with the remedy."""
