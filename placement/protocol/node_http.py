"""Constants that both sides of the HTTPS channel between a node and the web use."""

FILE_PIECE_BYTES = 2**20
"""Bytes of one answer with a part of a file. A shorter answer is the last one."""
KEY_HEADER = "X-Job-Key"
"""Names the Job that a node means, because numbers may be another Job's after a
restore.
"""
BOOT_HEADER = "X-Boot-Id"
"""Identity of the machine's present boot. It shows two machines with one token."""
MOST_BOOT_ID = 40
"""Characters of it."""
