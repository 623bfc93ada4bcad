"""Messages from the page of a terminal to its node.

One byte of kind, two bytes of length (big endian), then the content:

    s   the size of the terminal: columns and rows, two bytes each
    d   keys that were typed
"""

from __future__ import annotations

import struct

SIZE = b"s"
KEYS = b"d"
FEWEST, MOST = 2, 1000
"""Columns, and rows, of a terminal."""
HEAD_BYTES = 3
KEYS_BYTES = 60 * 1024
"""Bytes of the longest content that is sent. The head has 16 bits for the length."""
_HEAD = struct.Struct(">cH")
_SIZE = struct.Struct(">HH")


def pack_message(kind: bytes, content: bytes) -> bytes:
    """Return a message as bytes.

    >>> pack_message(KEYS, b"ls")
    b'd\\x00\\x02ls'
    """
    return _HEAD.pack(kind, len(content)) + content


def unpack_head(data: bytes) -> tuple[bytes, int]:
    """Return kind and length in bytes of the message that begins so."""
    kind, length_bytes = _HEAD.unpack(data)
    return kind, length_bytes


def pack_size(columns: int, rows: int) -> bytes:
    """Return the content of a message with a size."""
    return _SIZE.pack(columns, rows)


def unpack_size(content: bytes) -> tuple[int, int]:
    """Return columns and rows.

    Raises:
        ValueError: it is no size, or one that no page has.
    """
    if len(content) != _SIZE.size:
        raise ValueError(f"a size of {len(content)} bytes")
    columns, rows = _SIZE.unpack(content)
    if not (FEWEST <= columns <= MOST and FEWEST <= rows <= MOST):
        raise ValueError(f"a terminal of {columns} columns and {rows} rows")
    return columns, rows
