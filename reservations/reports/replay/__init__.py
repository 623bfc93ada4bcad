"""Past requests played again under other rules."""
