"""Past requests replayed under other rules."""
