"""What GPUs did: minutes, hours, summaries and charts."""
