"""Names of the broker keys that both a node and the web use."""

RAW = "raw."
"""Stream of each node with its Samples. The node's name follows."""
WATCHED = "telemetry.watched."
"""Key per Gpu that the web keeps alive while a page of it is open."""
