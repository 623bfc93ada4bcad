"""Files in the body of a request (multipart/form-data, RFC 7578)."""

import io
import json
import os
import struct

from gpuportal_client.portal_api import Refused

SAFETENSORS = ".safetensors"


class FileUpload:
    """The body of a request that sends files, one after another."""

    def __init__(self, fields):
        """Take (name of the field, path) of each file."""
        self.boundary = os.urandom(16).hex()
        self.parts, self.size = [], 0
        for name, path in fields:
            # Quotes and line breaks would end the name.
            shown = path.name.translate({34: "%22", 13: "%0D", 10: "%0A"})
            head = f'--{self.boundary}\r\nContent-Disposition: form-data; name="{name}"'
            head += f'; filename="{shown}"\r\nContent-Type: application/octet-stream'
            self._add(io.BytesIO(f"{head}\r\n\r\n".encode()))
            self._add(_content(path))
            self._add(io.BytesIO(b"\r\n"))
        self._add(io.BytesIO(f"--{self.boundary}--\r\n".encode()))

    @property
    def kind(self):
        """Return the value of the header Content-Type."""
        return f"multipart/form-data; boundary={self.boundary}"

    def read(self, size):
        """Return the next bytes; b"" at the end."""
        while self.parts:
            if data := self.parts[0].read(size):
                return data
            self.parts.pop(0).close()
        return b""

    def _add(self, part):
        self.parts.append(part)
        self.size += part.seek(0, os.SEEK_END)
        part.seek(0)


def _content(path):
    """Return an open file; of a .safetensors file only the header, which has its sizes.

    It is a valid file for the planner, which reads no weights.
    """
    file = path.open("rb")
    if path.suffix != SAFETENSORS:
        return file
    with file:
        start = file.read(8)
        size = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        text = file.read(size) if 0 < size < 2**27 else b""
    try:
        json.loads(text)
    except ValueError:
        raise Refused(f"{path} is not a .safetensors file", 2) from None
    return io.BytesIO(start + text)
