"""Child processes, with limits, that read the files that people upload."""
