"""The HTTP shell: middleware, tokens, errors as problem+json, served models."""
