"""What the nodes and the web both speak about jobs: commands, events, signatures."""
