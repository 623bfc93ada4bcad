"""The ssh public keys that users store, for certificates."""
