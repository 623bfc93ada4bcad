"""The files of a job on its node: folders, quotas, logs, results, checkpoints."""
