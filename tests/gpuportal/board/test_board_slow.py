"""A browser that does not read costs the server nothing and gets the newest frame."""

import asyncio
import struct
from pathlib import Path

import pytest
import websockets

from telemetry.live import broadcast
from telemetry.live.hub import FRAME
from tests.factories import make_membership, make_user
from tests.gpuportal.board.test_consumers import sign_in

pytestmark = pytest.mark.django_db(transaction=True)
FRAMES = 300
FRAME_BYTES = 200_000


def frame(number: int) -> bytes:
    return struct.pack("<I", number) + bytes(FRAME_BYTES)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


async def test_a_slow_browser_skips_frames_and_nothing_piles_up(
    live_asgi: str, redis_client
):
    alice = await asyncio.to_thread(make_user, "alice")
    await asyncio.to_thread(make_membership, alice, "vision")
    key = await asyncio.to_thread(sign_in, alice)
    url = live_asgi.replace("http", "ws") + "/ws/board/"
    async with websockets.connect(
        url,
        origin=live_asgi,
        additional_headers={"cookie": f"sessionid={key}"},
        compression=None,
        open_timeout=60,
        max_queue=1,
        max_size=None,
    ) as link:
        while redis_client.pubsub_numsub(FRAME)[0][1] != 1:
            await asyncio.sleep(0.02)
        before = resident_bytes()
        with redis_client.pipeline() as pipe:
            for number in range(FRAMES):
                broadcast.publish_frame(pipe, frame(number))
                if number % 10 == 9:
                    await asyncio.to_thread(pipe.execute)
                    await asyncio.sleep(0.02)
        await asyncio.sleep(0.5)
        # 60 MB were published; sockets and buffers may hold some of it.
        assert resident_bytes() - before < 40 * 2**20
        seen = []
        while not seen or seen[-1] != FRAMES - 1:
            message = await asyncio.wait_for(link.recv(), 60)
            if isinstance(message, bytes):
                seen.append(struct.unpack_from("<I", message)[0])
        assert seen == sorted(seen)
        assert len(seen) < FRAMES
