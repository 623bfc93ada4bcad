"""Sign-in with the user name and password of an LDAP directory."""
