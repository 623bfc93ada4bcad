"""A job's processes: the shim, the job's user, its unit, its end."""
