"""Pure tests: no database, no deadline for examples on a busy machine."""

from hypothesis import settings

settings.register_profile("portal", deadline=None)
settings.load_profile("portal")
