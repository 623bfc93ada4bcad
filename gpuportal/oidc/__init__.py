"""Sign-in with OpenID Connect: code flow with PKCE, state and nonce."""
