"""Alerts as pages show them, and the responses to them.

The bell, the list of alerts, and the sentences for each finding. Findings are judged in
``reservations.presence``.
"""
