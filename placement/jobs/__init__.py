"""Jobs: launch, list, follow and stop them; commands to nodes and events from them."""
