"""Readers of Hugging Face's config.json, one module per kind of transformer."""
