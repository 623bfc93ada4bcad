"""The demo lab: people, nodes and two weeks of history, made once."""
