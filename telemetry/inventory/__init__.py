"""Nodes and their GPUs as rows: enrolment, rosters, XID errors, thresholds."""
