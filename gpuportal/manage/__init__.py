"""The admin's pages: home, audit log, people."""
