"""The admin's pages that belong to no app: home, audit log, people."""
