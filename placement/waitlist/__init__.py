"""Jobs that wait with a request on the waitlist, and start when it is placed."""
