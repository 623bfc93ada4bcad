"""A library that estimates, splits and places models. No Django, no portal."""
