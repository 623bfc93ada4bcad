"""Reference cases: models and split problems with known answers."""
