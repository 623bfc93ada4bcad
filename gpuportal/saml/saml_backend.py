"""The authentication backend of sessions that a SAML provider began."""

from gpuportal.oidc.backend import OidcBackend


class SamlBackend(OidcBackend):
    """Loads the person of a session, as long as `LOGIN` lists saml."""
