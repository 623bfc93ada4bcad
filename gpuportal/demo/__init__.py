"""The demo lab: people, nodes and a fortnight of history, made once."""
