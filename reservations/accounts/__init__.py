"""People, groups, courses, invitations and tokens."""
