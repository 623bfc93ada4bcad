"""What may be written on the ground floor. Other floors call these, nothing else."""
