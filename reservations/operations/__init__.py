"""The operator's work: pools, closures, policies, machines."""
