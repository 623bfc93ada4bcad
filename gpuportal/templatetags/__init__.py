"""Template tags of all pages."""
