"""People, groups, courses, invitations and API tokens."""
