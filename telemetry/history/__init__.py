"""The history of GPUs: minutes, hours, summaries and charts."""
