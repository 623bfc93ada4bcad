"""Whether the portal itself works: health, Prometheus metrics, ticks."""
