"""A library that estimates, splits and places models: no Django, no portal."""
