"""What nodes and web both speak about jobs: commands, events, signatures."""
