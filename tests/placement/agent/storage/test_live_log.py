"""The live view of a log, piece by piece."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement.agent.job_folder import JobFolder
from placement.agent.storage import live_log
from placement.agent.storage.live_log import LogPump, without_partial_character


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "7-1"
    path.mkdir()
    return JobFolder.at(path)


def test_what_is_new_is_sent_once(folder):
    folder.log.write_bytes(b"")
    pump = LogPump(folder)
    assert pump.next_message(0.0, ended=False) is None
    folder.log.write_bytes(b"one\n")
    assert pump.next_message(0.2, ended=False)["data"] == "one\n"
    assert pump.next_message(0.4, ended=False) is None
    folder.log.write_bytes(b"one\ntwo")
    message = pump.next_message(0.6, ended=False)
    assert (message["offset"], message["bytes"], message["data"]) == (4, 3, "two")


def test_a_flood_is_held_to_its_rate_and_skips_the_middle(folder):
    folder.log.write_bytes(b"")
    pump = LogPump(folder)
    sent, now = [], 0.0
    with folder.log.open("ab") as log:
        for _ in range(100):
            log.write(b"x" * 99 + b"\n" + b"y" * 999_899 + b"\n")
            log.flush()
            now += 0.2
            message = pump.next_message(now, ended=False)
            if message:
                sent.append(message["bytes"])
    assert sum(sent) <= now * live_log.RATE_BYTES_PER_SECOND + live_log.BACKLOG_BYTES
    assert max(sent) <= 64 * 1024
    assert pump.offset > 99_000_000 * 0.99


def test_a_character_cut_in_half_waits_for_its_rest(folder):
    folder.log.write_bytes(b"")
    pump = LogPump(folder)
    folder.log.write_bytes("ä€".encode()[:3])
    assert pump.next_message(0.0, ended=False)["data"] == "ä"
    folder.log.write_bytes("ä€".encode())
    assert pump.next_message(0.2, ended=False)["data"] == "€"


def test_a_character_that_never_comes_is_shown_at_the_end(folder):
    folder.log.write_bytes(b"")
    pump = LogPump(folder)
    folder.log.write_bytes(b"a\xe2\x82")
    assert pump.next_message(0.0, ended=True)["data"] == "a\ufffd"


def test_a_log_that_its_job_truncates_goes_on(folder):
    folder.log.write_bytes(b"")
    pump = LogPump(folder)
    folder.log.write_bytes(b"a long line\n")
    pump.next_message(0.0, ended=False)
    folder.log.write_bytes(b"")
    assert pump.next_message(0.2, ended=False) is None
    folder.log.write_bytes(b"new\n")
    assert pump.next_message(0.4, ended=False)["data"] == "new\n"


@given(st.binary(max_size=50))
def test_at_most_three_bytes_wait_and_they_can_become_a_character(data):
    kept = without_partial_character(data)
    rest = data[len(kept) :]
    assert data.startswith(kept) and len(rest) <= 3
    if rest:
        assert rest[0] >= 0xC0


@given(st.text(max_size=20), st.integers(0, 60))
def test_whole_characters_never_wait(text, cut):
    data = text.encode()[:cut]
    kept = without_partial_character(data)
    assert kept.decode() == data.decode(errors="ignore")
