"""People make their account: they prove a mail address of a domain that may."""
