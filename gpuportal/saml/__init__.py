"""Sign-in with a SAML 2.0 identity provider."""
