"""Pages that belong to no app: start page, search, glossary, help."""
