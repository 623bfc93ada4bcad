"""Pages of no app: start page, search, glossary, help."""
