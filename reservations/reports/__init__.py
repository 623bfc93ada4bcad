"""Reports on use."""
