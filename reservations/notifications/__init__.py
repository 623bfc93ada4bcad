"""Notices: their texts, and how they reach people."""
