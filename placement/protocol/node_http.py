"""What both sides of the HTTPS channel between a node and the web agree on."""

FILE_PIECE_BYTES = 2**20
"""Of one answer with a part of a file; a shorter one is the last."""
KEY_HEADER = "X-Job-Key"
"""Names the Job that a node means: numbers may be another Job's after a restore."""
