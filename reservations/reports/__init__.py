"""Reports on use, by month, person and GPU."""
