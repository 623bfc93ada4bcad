"""HTTP for all apps: middleware, API tokens, problem+json, login limits.

The door to served models is here too, because it answers before Django does.
"""
