"""What the door of served models does with a compressed request."""

import gzip
import zlib

import pytest

from gpuportal.http.serve_door import plain_body, unpacked
from placement.protocol.call_refusal import CallRefused
from placement.protocol.serving_frames import MOST_REQUEST_BYTES

BODY = b'{"inputs": []}'


async def test_a_gzip_body_is_unpacked():
    for coding in ("gzip", "X-GZIP"):
        packed = gzip.compress(BODY)
        assert await plain_body(packed, {"content-encoding": coding}) == BODY
    assert await plain_body(BODY, {}) == BODY
    assert await plain_body(BODY, {"content-encoding": "identity"}) == BODY
    with pytest.raises(CallRefused) as refused:
        await plain_body(BODY, {"content-encoding": "br"})
    assert refused.value.status == 415


def test_a_body_may_be_as_long_as_without_compression_and_no_longer():
    whole = gzip.compress(bytes(MOST_REQUEST_BYTES))
    assert len(unpacked(whole)) == MOST_REQUEST_BYTES
    bomb = zlib.compressobj(wbits=31)
    packed = b"".join(bomb.compress(bytes(2**20)) for _ in range(64)) + bomb.flush()
    assert len(packed) < 2**17
    with pytest.raises(CallRefused) as refused:
        unpacked(packed)
    assert refused.value.status == 413


@pytest.mark.parametrize(
    "body",
    [
        b"",
        BODY,
        gzip.compress(BODY)[:-1],
        gzip.compress(BODY)[:-8] + bytes(8),
        gzip.compress(BODY) + b"x",
        gzip.compress(BODY) * 2,
        zlib.compress(BODY),
    ],
    ids=["empty", "plain", "cut", "checksum", "more", "twice", "zlib"],
)
def test_a_damaged_body_is_refused(body):
    with pytest.raises(CallRefused) as refused:
        unpacked(body)
    assert refused.value.status == 400
