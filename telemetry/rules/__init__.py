"""Pure rules of telemetry: findings, thresholds, roll-ups, energy."""
