"""From the ingest process to every web process: channel names and the hub."""
