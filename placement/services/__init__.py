"""Every write of the second floor. Keyword-only; ``now`` is aware UTC."""
