"""Whether the portal itself is well: health, metrics, ticks."""
