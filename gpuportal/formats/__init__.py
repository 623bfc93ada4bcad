"""How each language writes dates and figures, where Django's own way does not fit.

Figures have a point in every language, as on the instruments, in the API, in inputs
and in what scripts write. So no attribute, style or JSON ever gets a comma.
"""
