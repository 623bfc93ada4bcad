"""Formats of dates and figures by language, where Django's defaults do not fit.

Figures have a decimal point in every language, as in the API, in inputs and in the
output of scripts. So no attribute, style or JSON ever gets a comma.
"""
