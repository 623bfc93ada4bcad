"""The lobby in a real browser."""
