"""Tests of served language models."""
