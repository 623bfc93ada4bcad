"""Jobs: launched, listed, followed and stopped."""
