"""The portal's log lines: their form, their bounds, and the request in each."""
