"""A job's files on the node: folders, quotas, logs, results, checkpoints."""
