"""Join a machine as a node with one line: token, code, key, and the broker's user.

``join_client`` runs on the machine and imports no Django. Everything else is the
portal's side.
"""
