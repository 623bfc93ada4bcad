"""The admin's work: pools, closures, policies, machines."""
