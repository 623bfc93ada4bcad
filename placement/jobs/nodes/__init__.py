"""The web's side of the nodes: commands out; events, logs and files in."""
