"""The processes of a job: shim, Unix user, systemd unit, end."""
