"""The portal as an OpenID provider for other services of the lab."""
