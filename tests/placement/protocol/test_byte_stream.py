"""Two ends of a stream, joined without a socket."""

import asyncio

import pytest

from placement.protocol.byte_stream import ByteStream
from placement.protocol.stream_frames import PIECE_BYTES, WINDOW_BYTES, DataFrame

NAME = "a" * 32


class Joined:
    """A writer and a reader, and the sizes of the frames between them."""

    def __init__(self, window_bytes):
        self.sizes = []
        self.reader = ByteStream(NAME, self._back, window_bytes)
        self.writer = ByteStream(NAME, self._on)

    def _on(self, frames):
        for frame in frames:
            if isinstance(frame, DataFrame):
                self.sizes.append(len(frame.body))
            self.reader.deliver(frame)

    def _back(self, frames):
        for frame in frames:
            self.writer.deliver(frame)

    async def copy(self, parts):
        """Return what arrives of the parts."""

        async def write():
            for part in parts:
                await self.writer.write(part)
            self.writer.finish()

        writing = asyncio.ensure_future(write())
        found = b""
        while piece := await self.reader.read():
            found += piece.data
        await writing
        return found


@pytest.mark.parametrize("window_bytes", [1, 2, 3, 1000, 64 * 1024, WINDOW_BYTES])
@pytest.mark.parametrize("step", [1, 999, PIECE_BYTES, PIECE_BYTES + 7])
async def test_everything_arrives_whatever_the_window(window_bytes, step):
    data = bytes(i % 251 for i in range(min(40 * window_bytes, 20 * step, 600_000)))
    parts = [data[i : i + step] for i in range(0, len(data), step)]
    assert await Joined(window_bytes).copy(parts) == data


async def test_a_large_copy_is_not_cut_into_crumbs():
    ends = Joined(WINDOW_BYTES)
    await ends.copy([bytes(PIECE_BYTES)] * 100)
    assert ends.sizes == [PIECE_BYTES] * 100
