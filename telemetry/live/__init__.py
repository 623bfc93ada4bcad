"""From the ingest process to every web process: names of channels, and the hub."""
