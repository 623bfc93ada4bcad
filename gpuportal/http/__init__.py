"""HTTP for all apps: middleware, API tokens, problem+json, login limits.

The address of served models is here too, because it is answered before Django.
"""
