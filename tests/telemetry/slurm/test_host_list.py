"""Lists of hosts."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from telemetry.slurm.host_list import HostListInvalid, read_hosts

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[08-10],login", ["gpu08", "gpu09", "gpu10", "login"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
        ("gpu[1-2]-ib", ["gpu1-ib", "gpu2-ib"]),
        ("", []),
        ("(null)", []),
    ],
)
def test_reads_hosts(text, hosts):
    assert list(read_hosts(text)) == hosts


@pytest.mark.parametrize(
    "text",
    ["a[1-", "a]1[", "a[3-1]", "a[x-y]", "a[0-99999999]", "a[1-999]b[1-999]c[1-999]"],
)
def test_refuses(text):
    with pytest.raises(HostListInvalid):
        read_hosts(text)


@given(st.text(alphabet="a[],-0123456789", max_size=30))
def test_takes_any_text(text):
    with contextlib.suppress(HostListInvalid):
        read_hosts(text)
