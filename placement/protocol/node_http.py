"""Constants that both sides of the connections between a node and the web use."""

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
UNSENT_BYTES = 64 * 1024
"""Bytes that the kernel takes of a connection beyond those that are on their way. By
default it takes megabytes, and a key waits behind all of them (Linux's ip-sysctl,
``tcp_notsent_lowat``).
"""
