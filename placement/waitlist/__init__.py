"""Jobs that wait with a request on the waitlist, and start where it is placed."""
